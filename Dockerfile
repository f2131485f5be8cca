# One image for every service and for the command line. The command chooses:
#
#   docker build -t highwater .
#   docker run highwater python -m highwater.log_storage --set broker.id=1 …
#
# It is made to run as any uid (10001 unless told otherwise), with a read-only root and without capabilities. docs/operations.md says more.

# A Debian or the like, with Python 3.11 or newer, its venv and glibc.
ARG BASE=docker.io/library/python:3.11-slim-bookworm

FROM ${BASE} AS build
# `local` for an image that `highwater up` runs in, too.
ARG EXTRAS=server,cli,otel
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore
WORKDIR /source

# What builds Highwater, and what it needs, each file by its hash: a layer that stays while the code changes.
COPY docker/build.txt docker/hashes.txt docker/hashes.py docker/requirements.py docker/slim.py /build/
RUN python3 -m venv /build && python3 -m venv --without-pip /opt/highwater \
    && /build/bin/pip install --only-binary :all: --require-hashes -r /build/build.txt
COPY pyproject.toml constraints.txt ./
RUN python3 /build/requirements.py pyproject.toml "${EXTRAS}" > /build/requirements.txt \
    && /build/bin/pip download --only-binary :all: -c constraints.txt -r /build/requirements.txt -d /build/packages \
    && python3 /build/hashes.py check /build/hashes.txt /build/packages \
    && /build/bin/pip --python /opt/highwater/bin/python install --no-compile --no-index --no-deps /build/packages/* \
    && rm -r /build/packages \
    && python3 /build/slim.py /opt/highwater/lib/python3.*/site-packages
# Compiled once and for all: a read-only root keeps nothing. Whether a source is newer is not asked, since layers lose
# times. Of pygments' lexers none is used.
RUN python3 -m compileall -q -j 0 -x '/pygments/(lexers|styles)/' --invalidation-mode unchecked-hash /opt/highwater/lib

# Highwater itself.
COPY hatch_build.py README.md LICENSE ./
COPY proto proto
COPY services services
RUN PATH=/build/bin:$PATH /build/bin/pip wheel --no-deps --no-build-isolation -w /build/wheels . \
    && /build/bin/pip --python /opt/highwater/bin/python install --no-compile --no-deps --root /ours /build/wheels/*.whl \
    && find /ours -name '*.pyi' -delete \
    && python3 -m compileall -q -j 0 -s /ours --invalidation-mode unchecked-hash /ours

FROM ${BASE}
COPY --from=build /opt/highwater /opt/highwater
COPY --from=build /ours /
ENV PATH=/opt/highwater/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/
# Importing every program shows that nothing is missing, and compiles what they use of Python's library, where the base
# image brings its sources only.
RUN echo 'highwater:x:10001:10001::/:/usr/sbin/nologin' >> /etc/passwd \
    && echo 'highwater:x:10001:' >> /etc/group \
    && python -c 'import pyarrow, pyarrow.compute, pyarrow.ipc, highwater.rpc.health' \
    && python -c 'from highwater.client.blocking import Admin, Consumer, Producer' \
    && for program in log_storage replica_manager fetcher controller; do \
        python -c "import highwater.${program}.process" || exit 1; \
    done \
    && highwater log verify --help > /dev/null
ENV PYTHONDONTWRITEBYTECODE=1
USER 10001:10001
CMD ["highwater", "--help"]
