# Four stages: one compiles a wheel, one has only the wheel, one installs it, and the last one has what runs.
#
#   docker build -t millpond .
#   docker build -t millpond --build-context wheel=dist .   compiles nothing: takes the wheel that `make wheel` built
#   docker build --target wheel --output dist .             writes the wheel to dist/
#
# What the stages run are scripts, so that they can be tried without docker: `make check-docker` reads this file.
ARG BASE=debian:bookworm-slim

FROM ${BASE} AS build
WORKDIR /src
COPY scripts/install_packages.sh scripts/build_wheel.sh scripts/write_bill_of_materials.py scripts/
COPY scripts/docker/build.sh scripts/docker/
COPY pyproject.toml CMakeLists.txt README.md LICENSE ./
COPY cmake cmake/
COPY licenses licenses/
COPY docs docs/
COPY native native/
COPY protos protos/
COPY millpond millpond/
COPY serving serving/
COPY fleet fleet/
COPY warmup warmup/
RUN scripts/docker/build.sh /src/dist

FROM scratch AS wheel
COPY --from=build /src/dist/*.whl /

FROM ${BASE} AS install
WORKDIR /tmp/setup
COPY scripts/docker/install.sh ./
COPY --from=wheel /*.whl wheels/
# Of pyproject.toml: object storage (s3, gs, az, hf), spans (otel) and the coordinator of a fleet of pods (kubernetes).
ARG EXTRAS=s3,gs,az,hf,otel,kubernetes
# The packages for --op_package, like "tensorflow-text==2.21.*".
ARG OP_PACKAGES=
RUN ./install.sh /opt/millpond "${EXTRAS}" ${OP_PACKAGES}

FROM ${BASE}
WORKDIR /
COPY scripts/install_packages.sh scripts/docker/prepare_runtime.sh /tmp/setup/
RUN /tmp/setup/prepare_runtime.sh
COPY --from=install /opt/millpond /opt/millpond
COPY scripts/docker/entrypoint.sh /opt/millpond/share/
# By the names that TensorFlow Serving's image has them under.
COPY scripts/docker/tensorflow_model_server.sh /usr/bin/tensorflow_model_server
COPY scripts/docker/entrypoint.sh /usr/bin/tf_serving_entrypoint.sh

# As in TensorFlow Serving's image: models/NAME/VERSION below the base path, the port that its clients expect.
ENV PATH=/opt/millpond/bin:/usr/local/bin:/usr/bin:/bin
ENV MODEL_BASE_PATH=/models
ENV MODEL_NAME=model
ENV MILLPOND_PORT=8500
ENV MILLPOND_HTTP_PORT=8501
# The cache of object storage is below it.
ENV XDG_CACHE_HOME=/var/cache
VOLUME /models /var/cache/millpond
EXPOSE 8500 8501
# As a number, because Kubernetes' runAsNonRoot does not look names up.
USER 10001:10001
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s CMD ["millpond", "health"]
ENTRYPOINT ["/opt/millpond/share/entrypoint.sh"]
