# The images of AgentGym; docs/containers.md says how each is run.
#
#   docker build --network host --target base    --tag localhost/agentgym/base    .   AgentGym and its servers; every environment is FROM it
#   docker build --network host --target envs  --tag localhost/agentgym/envs  .   the environments that come with it
#   docker build --network host --target gateway --tag localhost/agentgym/gateway .   the gateway
#   docker build --network host --target model   --tag localhost/agentgym/model   .   and torch: serves checkpoints, trains
#
# On Linux PyPI's torch brings CUDA; for CPUs alone: --build-arg PIP_EXTRA_INDEX_URL=(PyTorch's index of CPU wheels).

# `make pin` writes the digest that the registry gives this tag (NAME:TAG@sha256:...).
ARG PYTHON_IMAGE=python:3.11-slim-bookworm

FROM ${PYTHON_IMAGE} AS wheel
WORKDIR /source
COPY . .
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels .

FROM ${PYTHON_IMAGE} AS start
ENV PATH=/opt/agentgym/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 HOME=/tmp
RUN python -m venv /opt/agentgym \
 && useradd --system --uid 10001 --home-dir /tmp --no-create-home agentgym \
 && install --directory --owner agentgym --mode 0700 /data
WORKDIR /tmp
EXPOSE 8000
HEALTHCHECK --interval=5s --timeout=5s --start-period=60s CMD ["python", "-m", "agentgym_servers.web.healthcheck"]
ENTRYPOINT ["agentgym"]
CMD ["--help"]

FROM start AS base
COPY --from=wheel /wheels /wheels
RUN pip install --no-cache-dir "$(echo /wheels/*.whl)[serve]"
USER agentgym

FROM base AS envs
ENTRYPOINT ["agentgym", "serve", "--host", "0.0.0.0", "--port", "8000"]
CMD ["keydoor"]

FROM base AS gateway
USER root
RUN pip install --no-cache-dir "$(echo /wheels/*.whl)[gateway]"
USER agentgym

# What "train" needs comes before AgentGym, so that a change of ours does not fetch torch again.
FROM start AS torch
ARG PIP_EXTRA_INDEX_URL
ARG PIP_FIND_LINKS
COPY pyproject.toml constraints.txt /wheels/
RUN python -c "import tomllib; project = tomllib.load(open('/wheels/pyproject.toml', 'rb'))['project']; \
print(*project['optional-dependencies']['train'], sep='\n')" > /wheels/train.txt \
 && pip install --no-cache-dir --constraint /wheels/constraints.txt --requirement /wheels/train.txt

FROM torch AS model
COPY --from=wheel /wheels /wheels
RUN pip install --no-cache-dir "$(echo /wheels/*.whl)[serve,train]"
USER agentgym
