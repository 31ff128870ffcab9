#!/bin/sh
# Post one handwritten digit to a running gateway and print the answer.
#
#     examples/digits/post_digit.sh [ROW [URL]]
#
# ROW is a row of test_images.npy, 0 to 359 (default 0). URL is the gateway
# (default http://127.0.0.1:8000); the model is expected under the name "digits".
set -eu

row=${1:-0}
url=${2:-http://127.0.0.1:8000}
here=$(dirname "$0")
case $row in
    '' | *[!0-9]*) echo "ROW must be a number, not '$row'" >&2; exit 2 ;;
esac
if [ "$row" -gt 359 ]; then
    echo "ROW must be at most 359, not $row" >&2
    exit 2
fi

# Behind 128 bytes of header, a .npy file is its plain little-endian numbers:
# 64 of 4 bytes for an image, one of 8 bytes for a label.
pixels=$(od -A n -v -t f4 -j $((128 + row * 256)) -N 256 -w32 "$here/test_images.npy")
label=$(od -A n -v -t d8 -j $((128 + row * 8)) -N 8 "$here/test_labels.npy")

echo "$pixels" | awk '{
    line = ""
    for (i = 1; i <= NF; i++) {
        ink = substr(" .:-=+*#%@", int($i * 9 / 16) + 1, 1)
        line = line ink ink
    }
    print "    " line
}'
echo "row $row, labelled" $label

# {"inputs": {"image": [[[[0, 0, 5, ...], ...]]]}}
echo "$pixels" | awk '{
    $1 = $1
    gsub(" ", ", ")
    rows = rows (NR > 1 ? ", " : "") "[" $0 "]"
}
END { printf "{\"inputs\": {\"image\": [[[%s]]]}}", rows }' |
    curl --silent --show-error --fail-with-body \
        --header 'Content-Type: application/json' --data-binary @- \
        "$url/v1/models/digits/infer"
echo
