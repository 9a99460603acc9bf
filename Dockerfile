# Images of a federation: `server` (SuperLink, gate, runs), `node` and `guard`.
#     docker build --target server -t dpcohort-server .
# Every process has its own user; compose.yaml adds a read-only root and takes the network away where
# none is needed. --build-arg PIP_EXTRA_INDEX_URL=... names an index beside the default one, for torch
# without CUDA. Every package is held against its hash in requirements-ci.txt, which is for this Python.
# The base image is held to a digest by --build-arg PYTHON_IMAGE=python@sha256:..., the digest that
# `docker buildx imagetools inspect python:3.11-slim-bookworm` prints where there is a network.
ARG PYTHON_IMAGE=python:3.11-slim-bookworm
FROM ${PYTHON_IMAGE} AS build
ARG PIP_EXTRA_INDEX_URL=""
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
WORKDIR /src
COPY pyproject.toml README.md LICENSE requirements-ci.txt ./
COPY dpcohort dpcohort
RUN python -m venv /opt/dpcohort \
    && /opt/dpcohort/bin/pip install --require-hashes --no-deps --only-binary :all: -r requirements-ci.txt \
    && /opt/dpcohort/bin/pip install --no-deps --no-build-isolation .

FROM ${PYTHON_IMAGE} AS base
COPY --from=build /opt/dpcohort /opt/dpcohort
# The numbers are the same in all images: a guard knows the SuperNode's user by it.
RUN groupadd --gid 10001 dpcohort-server && useradd --uid 10001 --gid 10001 --no-create-home dpcohort-server \
    && groupadd --gid 10002 dpcohort-guard && useradd --uid 10002 --gid 10002 --no-create-home dpcohort-guard \
    && groupadd --gid 10003 flower && useradd --uid 10003 --gid 10003 --groups dpcohort-guard --no-create-home flower \
    && install -d -o dpcohort-server -g dpcohort-server -m 0700 /srv/dpcohort \
    && install -d -o dpcohort-guard -g dpcohort-guard -m 0700 /etc/dpcohort-guard /var/lib/dpcohort-guard \
    && install -d -o dpcohort-guard -g dpcohort-guard -m 0755 /run/dpcohort-guard \
    && install -d -o flower -g flower -m 0700 /etc/flower /var/lib/flower
ENV PATH=/opt/dpcohort/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    FLWR_TELEMETRY_ENABLED=0 \
    FLWR_DISABLE_UPDATE_CHECK=1 \
    HOME=/tmp

FROM base AS server
USER 10001:10001
WORKDIR /srv/dpcohort
ENV FLWR_HOME=/srv/dpcohort/flwr
CMD ["dpcohort", "--help"]

FROM base AS node
USER 10003:10003
WORKDIR /var/lib/flower
ENV FLWR_HOME=/var/lib/flower
CMD ["dpcohort", "--help"]

FROM base AS guard
USER 10002:10002
# A model that is no part of dpcohort is looked for here.
WORKDIR /etc/dpcohort-guard
CMD ["dpcohort", "guard", "--help"]
