# cputune with all that tuning needs: torch without CUDA, the allocators to try, Open MPI.
#
#   docker build --tag cputune .
#   docker run --rm --shm-size 2g --cap-add SYS_NICE --volume "$PWD:/work" cputune doctor
#   docker run --rm --shm-size 2g --cap-add SYS_NICE --volume "$PWD:/work" cputune tune
#
# SYS_NICE lets ranks bind their memory. The folder must be writable for user 1000, or say
# --user "$(id -u):$(id -g)".
FROM python:3.12-slim-bookworm AS build
# git is not in this image, so the version is told: --build-arg VERSION="$(git describe --tags)"
ARG VERSION=0.1.0.dev0
ENV SETUPTOOLS_SCM_PRETEND_VERSION_FOR_CPUTUNE=$VERSION
RUN pip install --no-cache-dir build
WORKDIR /source
COPY pyproject.toml README.md LICENSE ./
COPY cputune cputune
COPY docs docs
COPY recipes recipes
RUN python -m build --wheel --outdir /wheel

FROM python:3.12-slim-bookworm
RUN apt-get update \
 && apt-get install --yes --no-install-recommends \
      libgomp1 libjemalloc2 libtcmalloc-minimal4 openmpi-bin openssh-client \
 && rm -rf /var/lib/apt/lists/*
# torch first, from the page that has it without CUDA; then nothing asks for another one.
RUN pip install --no-cache-dir --index-url https://download.pytorch.org/whl/cpu torch
COPY --from=build /wheel /wheel
RUN pip install --no-cache-dir "$(ls /wheel/*.whl)[all]"
# torch asks for the name of its user (getpass), so a number is not enough.
RUN useradd --uid 1000 --create-home train && install --directory --owner train /work
USER train
WORKDIR /work
ENTRYPOINT ["cputune"]
CMD ["doctor"]
