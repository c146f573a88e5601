# The operator. docker build -t REGISTRY/grpo-operator .
# Dependencies come from uv.lock; the project's own code is the last, small layer.
ARG BASE_IMAGE=python:3.11-slim-bookworm

FROM ${BASE_IMAGE} AS dependencies
ARG UV_VERSION=0.13.9
# A bundle of certificate authorities, for networks that have their own.
ARG SSL_CERT_FILE
WORKDIR /src
COPY pyproject.toml uv.lock ./
RUN python3 -m venv /opt/uv \
 && PIP_CERT="${SSL_CERT_FILE:-}" /opt/uv/bin/pip install --quiet --no-cache-dir uv==${UV_VERSION} \
 && UV_PROJECT_ENVIRONMENT=/opt/venv UV_PYTHON_DOWNLOADS=never UV_COMPILE_BYTECODE=1 \
    /opt/uv/bin/uv sync --quiet --frozen --no-cache --no-dev --no-install-project --extra operator

FROM ${BASE_IMAGE}
LABEL org.opencontainers.image.title="grpo-operator" org.opencontainers.image.licenses="Apache-2.0"
ENV PATH=/opt/venv/bin:$PATH PYTHONPATH=/opt/grpo PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1 HOME=/tmp
COPY --from=dependencies /opt/venv /opt/venv
COPY api/grpo_api /opt/grpo/grpo_api
COPY operator/grpo_operator /opt/grpo/grpo_operator
USER 10001:10001
ENTRYPOINT ["python3", "-m", "grpo_operator.main"]
