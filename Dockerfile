# cputune with all that tuning needs: torch without CUDA, the allocators to try, Open MPI.
#
#   docker build --tag cputune .
#   docker run --rm --shm-size 2g --cap-add SYS_NICE --volume "$PWD:/work" cputune doctor
#   docker run --rm --shm-size 2g --cap-add SYS_NICE --volume "$PWD:/work" cputune tune
#
# SYS_NICE lets ranks bind their memory. The folder must be writable for user 1000, or say
# --user "$(id -u):$(id -g)".
FROM python:3.12-slim-bookworm@sha256:782412e85d0f0984994c290652577d4018aff08145c85b262bb63dc0c7522254 AS build
# git is not in this image, so the version is told: --build-arg VERSION="$(git describe --tags)"
ARG VERSION=0.1.0.dev0
ENV SETUPTOOLS_SCM_PRETEND_VERSION_FOR_CPUTUNE=$VERSION
COPY requirements-release.txt ./
RUN pip install --no-cache-dir --require-hashes --only-binary :all: -r requirements-release.txt
WORKDIR /source
COPY pyproject.toml hatch_build.py README.md LICENSE ./
COPY cputune cputune
COPY docs docs
COPY recipes recipes
RUN python -m build --no-isolation --wheel --outdir /wheel

FROM python:3.12-slim-bookworm@sha256:782412e85d0f0984994c290652577d4018aff08145c85b262bb63dc0c7522254
RUN apt-get update \
 && apt-get install --yes --no-install-recommends \
      libgomp1 libjemalloc2 libtcmalloc-minimal4 openmpi-bin openssh-client \
 && rm -rf /var/lib/apt/lists/*
# torch first, from the page that has it without CUDA; then nothing asks for another one.
RUN pip install --no-cache-dir --no-deps --index-url https://download.pytorch.org/whl/cpu torch==2.13.0
COPY requirements-image.txt /
RUN pip install --no-cache-dir --no-deps --require-hashes --only-binary :all: -r /requirements-image.txt
COPY --from=build /wheel /wheel
RUN pip install --no-cache-dir --no-deps /wheel/*.whl && pip check
# torch asks for the name of its user (getpass), so a number is not enough.
RUN useradd --uid 1000 --create-home train && install --directory --owner train /work
USER train
WORKDIR /work
ENTRYPOINT ["cputune"]
CMD ["doctor"]
