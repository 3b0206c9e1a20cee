# Two stages over one base: the first compiles, the second has what runs and nothing that compiles.
# What the stages run are scripts, so that they can be tried without docker: `make check-docker` reads this file.
ARG BASE=debian:bookworm-slim

FROM ${BASE} AS build
WORKDIR /src
COPY scripts/install_packages.sh scripts/write_bill_of_materials.py scripts/
COPY scripts/docker/build.sh scripts/docker/
COPY pyproject.toml CMakeLists.txt README.md LICENSE ./
COPY cmake cmake/
COPY licenses licenses/
COPY docs docs/
COPY native native/
COPY protos protos/
COPY millpond millpond/
COPY serving serving/
COPY warmup warmup/
# What --op_package is to load, like "tensorflow-text==2.21.*".
ARG OP_PACKAGES=
RUN scripts/docker/build.sh /opt/millpond ${OP_PACKAGES}

FROM ${BASE}
WORKDIR /
COPY scripts/install_packages.sh scripts/docker/prepare_runtime.sh /tmp/setup/
RUN /tmp/setup/prepare_runtime.sh
COPY --from=build /opt/millpond /opt/millpond
COPY scripts/docker/entrypoint.sh scripts/docker/healthcheck.py /opt/millpond/share/
# By the names that TensorFlow Serving's image has them under.
COPY scripts/docker/tensorflow_model_server.sh /usr/bin/tensorflow_model_server
COPY scripts/docker/entrypoint.sh /usr/bin/tf_serving_entrypoint.sh

# As in TensorFlow Serving's image: models/NAME/VERSION below the base path, the port that its clients expect.
ENV PATH=/opt/millpond/bin:/usr/local/bin:/usr/bin:/bin
ENV MODEL_BASE_PATH=/models
ENV MODEL_NAME=model
ENV MILLPOND_PORT=8500
ENV MILLPOND_HTTP_PORT=8501
VOLUME /models
EXPOSE 8500 8501
USER millpond
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s CMD /opt/millpond/share/healthcheck.py
ENTRYPOINT ["/opt/millpond/share/entrypoint.sh"]
