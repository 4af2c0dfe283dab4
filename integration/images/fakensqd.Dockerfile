# The emulator in place of nsqd and nsqlookupd, for tests in any language. At the repository's root:
#     docker build --file integration/images/fakensqd.Dockerfile --tag fakensqd .
#     docker run --rm -p 4150:4150 -p 4151:4151 fakensqd
#     docker run --rm -p 4150:4150 -p 4153:4153 fakensqd nsqd --faults-over-http --faults-http-address 0.0.0.0:4153
#     docker run --rm -p 4150:4150 -p 4161:4161 fakensqd cluster --nsqds 1 --host 0.0.0.0 --broadcast-address localhost \
#         --base-port 4150
FROM python:3.13-slim AS build
COPY . /src
RUN python -m venv /opt/fakensqd && /opt/fakensqd/bin/pip install --no-cache-dir '/src[fakensqd]'

FROM python:3.13-slim
COPY --from=build /opt/fakensqd /opt/fakensqd
ENV PATH=/opt/fakensqd/bin:$PATH \
    PYTHONUNBUFFERED=1
USER 65534:65534
WORKDIR /tmp
EXPOSE 4150 4151 4153 4160 4161
ENTRYPOINT ["fakensqd"]
CMD ["nsqd"]
