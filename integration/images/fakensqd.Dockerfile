# The emulator in place of nsqd and nsqlookupd, for tests in any language. At the repository's root:
#     docker build --file integration/images/fakensqd.Dockerfile --tag fakensqd .
#     docker run --rm -p 4150:4150 -p 4151:4151 fakensqd
#     docker run --rm -p 4150:4150 -p 4161:4161 fakensqd cluster --nsqds 1 --broadcast-address localhost --base-port 4150
FROM python:3.13-slim AS build
COPY . /src
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /built /src
RUN python /src/integration/images/requirements.py fakensqd >/built/requirements.txt

FROM python:3.13-slim
COPY --from=build /built/requirements.txt /built/
RUN pip install --no-cache-dir --requirement /built/requirements.txt
COPY --from=build /built /built
RUN pip install --no-cache-dir --no-deps /built/*.whl
ENV FAKENSQD_HOST=0.0.0.0 PYTHONUNBUFFERED=1
USER 65534:65534
WORKDIR /tmp
EXPOSE 4150 4151 4160 4161
# A server listens, beside Docker's own at 127.0.0.11. A request would be one that a test's rules are for.
HEALTHCHECK --interval=5s CMD grep -v " 0B00007F:" /proc/net/tcp /proc/net/tcp6 | grep -q " 0A "
ENTRYPOINT ["fakensqd"]
CMD ["nsqd"]
