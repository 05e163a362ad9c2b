# The image of worker and Flower: of what requirements.lock pins only what runs, and neither compiler nor pip.
FROM python:3.11-slim AS packages
WORKDIR /src
COPY requirements.lock pyproject.toml scripts/image_packages.py ./
RUN python image_packages.py flower < requirements.lock > pinned.txt \
    && python -m venv /opt/crawler \
    && /opt/crawler/bin/pip install --no-cache-dir --disable-pip-version-check --no-deps --only-binary :all: \
        --require-hashes -r pinned.txt \
    && /opt/crawler/bin/pip uninstall -qy setuptools pip
COPY crawler /opt/crawler/lib/python3.11/site-packages/crawler
RUN /opt/crawler/bin/python -m compileall -q /opt/crawler/lib/python3.11/site-packages/crawler

FROM python:3.11-slim
COPY --from=packages /opt/crawler /opt/crawler
COPY scripts/container /opt/container/container
RUN chmod 755 /opt/container/container && ln -s container /opt/container/python \
    && ln -s container /opt/container/celery && install -d -o 1000 -g 1000 /data
ENV PATH=/opt/container:/opt/crawler/bin:$PATH PYTHONUNBUFFERED=1 CRAWLER_DATA_DIR=/data
WORKDIR /data
USER 1000:1000
CMD ["python", "-m", "crawler", "--help"]
