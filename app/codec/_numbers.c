/* The numbers of a JSON list, straight to the bytes of a tensor.
 *
 * Optional, as all compiled code is (docs/how-to/tune.md): app/codec/number_lists.py calls
 * it where it is there. It knows the usual form of numbers and answers None for anything
 * else (other values, other nesting, numbers out of range or longer than 19 digits): the
 * caller then goes the way of plain Python, which also says what is wrong. What it does
 * answer is the same to the last bit: decimals become doubles as IEEE 754 asks (round
 * to nearest, ties to even), then are rounded to the tensor's type.
 *
 * Decimals to doubles: products and quotients of numbers that a double holds are right
 * by themselves (Clinger 1990); for the others, the 64 bits of the decimal times the 128
 * leading bits of the power of five decide (Lemire 2021, "Number Parsing at a Gigabyte
 * per Second"), with powers of five from -54 to 54, computed when the module is loaded.
 */

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#if !defined(__SIZEOF_INT128__) || __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "needs 128-bit integers and a little-endian machine"
#endif

#define MOST_POWER 54
#define EXACT_POWER 22
#define EXACT_INTEGER (UINT64_C(1) << 53)
#define MOST_DIGITS 19
#define MOST_RANK 64
#define LONG_LIST (1 << 20) /* bytes of text */

typedef unsigned __int128 u128;

typedef struct {
    const uint8_t *at; /* the next character; a NUL stands behind the last */
    const uint8_t *end;
    uint8_t *out;
    const Py_ssize_t *shape;
    int rank;
    char code; /* as in Python's struct module */
    int size;  /* of an element */
} Reader;

typedef struct {
    uint64_t digits;
    int power; /* of ten */
    bool negative;
    bool whole; /* neither a point nor an exponent */
} Decimal;

static const double exact_powers[EXACT_POWER + 1] = {
    1e0,  1e1,  1e2,  1e3,  1e4,  1e5,  1e6,  1e7,  1e8,  1e9,  1e10, 1e11,
    1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22};

/* The leading 128 bits of the powers of five from -MOST_POWER to MOST_POWER. */
static u128 fives[2 * MOST_POWER + 1];

static u128 reciprocal(u128 five, int power)
{
    /* 2**(127 + bits of five) / five, digit by digit, rounded up where it has to be. */
    u128 quotient = 0, rest = 1;
    int bits = 0;
    while (bits < 127 && ((u128)1 << bits) < five)
        bits++;
    for (int i = 0; i < bits + 127; i++) {
        rest <<= 1;
        quotient <<= 1;
        if (rest >= five) {
            rest -= five;
            quotient |= 1;
        }
    }
    return power <= 27 ? quotient + 1 : quotient;
}

static void compute_fives(void)
{
    u128 five = 1;
    for (int power = 0; power <= MOST_POWER; power++, five *= 5) {
        u128 leading = five;
        while (!(leading >> 127))
            leading <<= 1;
        fives[MOST_POWER + power] = leading;
        if (power)
            fives[MOST_POWER - power] = reciprocal(five, power);
    }
}

/* digits * 10**power; false where it would take more to be sure. */
static bool to_double(uint64_t digits, int power, double *value)
{
    if (!digits) {
        *value = 0.0;
        return true;
    }
    if (digits <= EXACT_INTEGER && power >= -EXACT_POWER && power <= EXACT_POWER) {
        double exact = (double)digits;
        *value = power < 0 ? exact / exact_powers[-power] : exact * exact_powers[power];
        return true;
    }
    if (power < -MOST_POWER || power > MOST_POWER)
        return false;
    int zeros = __builtin_clzll(digits);
    uint64_t scaled = digits << zeros;
    u128 five = fives[MOST_POWER + power];
    u128 product = (u128)scaled * (uint64_t)(five >> 64);
    uint64_t high = (uint64_t)(product >> 64), low = (uint64_t)product;
    if ((high & 0x1FF) == 0x1FF) {
        uint64_t more = (uint64_t)(((u128)scaled * (uint64_t)five) >> 64);
        low += more;
        if (low < more)
            high++;
    }
    if (low == UINT64_MAX && power < -27)
        return false;
    int upper = (int)(high >> 63);
    uint64_t mantissa = high >> (upper + 9);
    int exponent = ((217706 * power) >> 16) + 63 + upper - zeros + 1023;
    if (exponent <= 0 || exponent >= 2046)
        return false;
    if (low <= 1 && power >= -4 && power <= 23 && (mantissa & 3) == 1 &&
        mantissa << (upper + 9) == high)
        mantissa &= ~UINT64_C(1); /* half way between two doubles: to the even one */
    mantissa = (mantissa + (mantissa & 1)) >> 1;
    if (mantissa >= UINT64_C(2) << 52) {
        mantissa = UINT64_C(1) << 52;
        exponent++;
    }
    mantissa &= ~(UINT64_C(1) << 52);
    mantissa |= (uint64_t)exponent << 52;
    memcpy(value, &mantissa, sizeof mantissa);
    return true;
}

static inline const uint8_t *skip_space(const uint8_t *at)
{
    while (*at == ' ' || *at == '\n' || *at == '\r' || *at == '\t')
        at++;
    return at;
}

static const uint64_t whole_powers[9] = {1,      10,      100,      1000,     10000,
                                         100000, 1000000, 10000000, 100000000};

static inline const uint8_t *read_digits(const uint8_t *at, uint64_t *digits)
{
    uint8_t digit;
    while ((digit = (uint8_t)(*at - '0')) <= 9) {
        *digits = *digits * 10 + digit;
        at++;
    }
    return at;
}

/* Digits behind a point, up to eight at a time while there are as many characters: how
 * many digits there are is hard to guess for the branches of a loop. */
static inline const uint8_t *read_fraction(const uint8_t *at, const uint8_t *end,
                                           uint64_t *digits)
{
    uint64_t word, others, value;
    int count;
    while (end - at >= 8) {
        memcpy(&word, at, 8);
        word ^= UINT64_C(0x3030303030303030);
        /* The high bit of each byte that is more than 9. */
        others = ((word + UINT64_C(0x7676767676767676)) | word) &
                 UINT64_C(0x8080808080808080);
        count = others ? __builtin_ctzll(others) >> 3 : 8;
        if (!count)
            return at;
        value = word << (64 - 8 * count);
        value = (value * 10) + (value >> 8);
        value = (((value & UINT64_C(0x000000FF000000FF)) * UINT64_C(0x000F424000000064)) +
                 (((value >> 16) & UINT64_C(0x000000FF000000FF)) *
                  UINT64_C(0x0000271000000001))) >>
                32;
        *digits = *digits * whole_powers[count] + value;
        at += count;
        if (count < 8)
            return at;
    }
    return read_digits(at, digits);
}

static Py_ssize_t leading_zeros(const uint8_t *at)
{
    Py_ssize_t count = 0;
    for (; *at == '0' || *at == '.'; at++)
        count += *at == '0';
    return count;
}

static bool read_exponent(Reader *reader, Decimal *decimal)
{
    const uint8_t *at = reader->at + 1;
    bool negative = *at == '-';
    uint64_t exponent = 0;
    if (*at == '-' || *at == '+')
        at++;
    const uint8_t *first = at;
    at = read_digits(at, &exponent);
    if (at == first || at - first > 3)
        return false;
    decimal->power += negative ? -(int)exponent : (int)exponent;
    decimal->whole = false;
    reader->at = at;
    return true;
}

/* A number as JSON writes them; false where there is none, or one too long. */
static bool read_decimal(Reader *reader, Decimal *decimal)
{
    const uint8_t *at = reader->at;
    decimal->negative = *at == '-';
    at += decimal->negative;
    const uint8_t *first = at;
    decimal->digits = 0;
    decimal->power = 0;
    decimal->whole = true;
    at = read_digits(at, &decimal->digits);
    Py_ssize_t count = at - first;
    if (!count || (*first == '0' && count > 1))
        return false;
    if (*at == '.') {
        const uint8_t *point = ++at;
        at = read_fraction(at, reader->end, &decimal->digits);
        if (at == point)
            return false;
        count += at - point;
        decimal->power = -(int)(at - point);
        decimal->whole = false;
    }
    if (count > MOST_DIGITS && count - leading_zeros(first) > MOST_DIGITS)
        return false;
    reader->at = at;
    if (*at == 'e' || *at == 'E')
        return read_exponent(reader, decimal);
    return true;
}

static bool put_float(Reader *reader, const Decimal *decimal)
{
    double value;
    if (!to_double(decimal->digits, decimal->power, &value))
        return false;
    if (decimal->negative)
        value = -value;
    if (reader->code == 'd') {
        memcpy(reader->out, &value, 8);
        reader->out += 8;
        return true;
    }
    float single = (float)value;
    if (isinf(single))
        return false;
    memcpy(reader->out, &single, 4);
    reader->out += 4;
    return true;
}

static bool put_integer(Reader *reader, const Decimal *decimal)
{
    bool has_sign = reader->code >= 'a'; /* the codes without are capitals */
    uint64_t most = UINT64_MAX >> (64 - 8 * reader->size + has_sign);
    if (!decimal->whole || decimal->digits > most + (has_sign && decimal->negative))
        return false;
    if (decimal->negative && !has_sign)
        return false;
    uint64_t bits = decimal->negative ? -decimal->digits : decimal->digits;
    memcpy(reader->out, &bits, (size_t)reader->size);
    reader->out += reader->size;
    return true;
}

static inline bool read_number(Reader *reader)
{
    Decimal decimal;
    if (!read_decimal(reader, &decimal))
        return false;
    if (decimal.negative && decimal.whole && !decimal.digits)
        return false; /* -0 is an integer to some parsers, and then has no sign */
    if (reader->code == 'f' || reader->code == 'd')
        return put_float(reader, &decimal);
    return put_integer(reader, &decimal);
}

/* A list of lists of … of numbers, with exactly the extents of the shape. */
static bool read_list(Reader *reader, int level)
{
    reader->at = skip_space(reader->at);
    if (*reader->at != '[')
        return false;
    reader->at++;
    for (Py_ssize_t left = reader->shape[level]; left; left--) {
        if (level + 1 < reader->rank) {
            if (!read_list(reader, level + 1))
                return false;
        } else {
            reader->at = skip_space(reader->at);
            if (!read_number(reader))
                return false;
        }
        reader->at = skip_space(reader->at);
        if (*reader->at != (left > 1 ? ',' : ']'))
            return false;
        reader->at++;
    }
    return true;
}

static int size_of(char code)
{
    switch (code) {
    case 'b':
    case 'B':
        return 1;
    case 'h':
    case 'H':
        return 2;
    case 'f':
    case 'i':
    case 'I':
        return 4;
    case 'd':
    case 'q':
    case 'Q':
        return 8;
    default:
        return 0;
    }
}

/* Extents of the shape, and how many elements they make; -1: none, or too many. */
static Py_ssize_t read_shape(PyObject *shape, Py_ssize_t *extents, Py_ssize_t most)
{
    Py_ssize_t count = 1;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(shape); i++) {
        extents[i] = PyLong_AsSsize_t(PyTuple_GET_ITEM(shape, i));
        if (extents[i] < 1 || extents[i] > most / count)
            return -1;
        count *= extents[i];
    }
    return count;
}

PyDoc_STRVAR(pack_doc,
"pack(text, start, end, shape, code)\n--\n\n"
"The bytes of the numbers in text[start:end], a JSON list, flat or nested as `shape`.\n\n"
"`code` is that of the struct module. None where they are not exactly so many numbers\n"
"of that type in their usual form.");

static PyObject *pack(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    if (count != 5 || !PyBytes_Check(args[0]) || !PyTuple_Check(args[3]) ||
        !PyUnicode_Check(args[4]) || PyUnicode_GET_LENGTH(args[4]) != 1) {
        PyErr_SetString(PyExc_TypeError, "expected bytes, int, int, tuple, str of one");
        return NULL;
    }
    Py_ssize_t start = PyLong_AsSsize_t(args[1]), end = PyLong_AsSsize_t(args[2]);
    if (PyErr_Occurred())
        return NULL;
    Py_ssize_t rank = PyTuple_GET_SIZE(args[3]), size = PyBytes_GET_SIZE(args[0]);
    char code = (char)PyUnicode_READ_CHAR(args[4], 0);
    Py_ssize_t extents[MOST_RANK];
    if (start < 0 || end > size || end - start < 2 || rank > MOST_RANK || !size_of(code))
        Py_RETURN_NONE;
    /* Each number takes two characters at least, so a shape bounds no memory alone. */
    Py_ssize_t elements = read_shape(args[3], extents, end - start);
    if (PyErr_Occurred())
        return NULL;
    if (elements < 0)
        Py_RETURN_NONE;
    PyObject *result = PyBytes_FromStringAndSize(NULL, elements * size_of(code));
    if (result == NULL)
        return NULL;
    const uint8_t *text = (const uint8_t *)PyBytes_AS_STRING(args[0]);
    Reader reader = {text + start, text + end, (uint8_t *)PyBytes_AS_STRING(result),
                     extents, (int)rank, code, size_of(code)};
    if (*skip_space(reader.at + 1) != '[') { /* flat */
        extents[0] = elements;
        reader.rank = 1;
    }
    /* The text is the caller's and the result is ours: long lists need no lock, and
     * others may go on. */
    PyThreadState *others = end - start > LONG_LIST ? PyEval_SaveThread() : NULL;
    bool good = reader.rank >= 1 && read_list(&reader, 0) && reader.at == reader.end;
    if (others != NULL)
        PyEval_RestoreThread(others);
    if (!good) {
        Py_DECREF(result);
        Py_RETURN_NONE;
    }
    return result;
}

static PyMethodDef methods[] = {
    {"pack", (PyCFunction)(void (*)(void))pack, METH_FASTCALL, pack_doc},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_numbers", "The numbers of a JSON list as bytes.", 0, methods,
    NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__numbers(void)
{
    compute_fives();
    return PyModule_Create(&definition);
}
