# syntax=docker/dockerfile:1
#
#     docker build -t popgate .
#     docker run --rm -p 127.0.0.1:8000:8000 -v "$PWD/models:/models:ro" popgate
#
# Inside the container the server listens on 0.0.0.0, because nothing outside could
# reach it otherwise. Who can reach it is then decided by what is published: `-p
# 8000:8000` opens it to every network of the host, `-p 127.0.0.1:8000:8000` to the
# host alone. Options of the server follow the name of the image; docs/how-to/secure.md has
# those for keys and TLS. Nobody loads or unloads models over HTTP; to allow it to those
# who have a key, set POPGATE_MODEL_CONTROL_MODE=managed and POPGATE_API_KEY.

# `make pin-image` writes the digest of this tag here; it needs docker and its registry.
ARG BASE=python:3.11-slim
FROM ${BASE} AS build
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
WORKDIR /src
# The hot path is compiled (docs/how-to/tune.md); the compiler stays behind in this stage.
RUN apt-get update && apt-get install -y --no-install-recommends gcc libc6-dev locales
# Models with StringNormalizer (text pipelines of scikit-learn) need this locale.
RUN localedef --no-archive -i en_US -f UTF-8 /usr/lib/locale/en_US.utf8
# The builder installs the locked dependencies first, because their types are compiled
# in. A change of the sources does not repeat this layer.
COPY requirements ./requirements
RUN python -m venv /opt/popgate \
    && pip install --require-hashes -r requirements/build.txt \
    && /opt/popgate/bin/pip install --require-hashes -r requirements/serve.txt
COPY . .
RUN POPGATE_COMPILE=1 pip wheel --no-build-isolation --no-deps --wheel-dir /wheels . \
    && /opt/popgate/bin/pip install --no-deps /wheels/*.whl \
    && /opt/popgate/bin/pip check

FROM ${BASE}
LABEL org.opencontainers.image.title="PopGate" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY --from=build /opt/popgate /opt/popgate
COPY deploy/health.py /opt/popgate/health.py
COPY --from=build /usr/lib/locale/en_US.utf8 /usr/lib/locale/en_US.utf8
RUN useradd --no-create-home --uid 10001 --home-dir /nonexistent --shell /usr/sbin/nologin popgate \
    && install -d -o popgate -g popgate /models /var/cache/popgate
USER popgate
ENV PATH=/opt/popgate/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    POPGATE_MODEL_REPOSITORY=/models \
    POPGATE_HOST=0.0.0.0 \
    POPGATE_PORT=8000 \
    POPGATE_CACHE_DIR=/var/cache/popgate \
    POPGATE_MODEL_CONTROL_MODE=none \
    POPGATE_LOG_FORMAT=json
VOLUME ["/models", "/var/cache/popgate"]
EXPOSE 8000
# Tensors pass through anonymous shared memory (memfd), which counts as memory of the
# container, not as /dev/shm: --shm-size need not be raised.
# Live, not ready: a container that still loads its models is not to be restarted.
HEALTHCHECK --interval=10s --timeout=3s --start-period=30s --retries=3 \
    CMD ["python", "/opt/popgate/health.py"]
# Longer than the gateway's own --shutdown-timeout, so that accepted requests finish:
#     docker stop --time 40
STOPSIGNAL SIGTERM
ENTRYPOINT ["popgate", "serve"]
