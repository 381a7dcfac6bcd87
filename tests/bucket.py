"""A bucket for `gs://` paths on 127.0.0.1, behind TensorFlow's own client for Google Cloud Storage.

    with bucket.Bucket(folder) as one:
        Task("train", command, folder, one.environment)
        one.failing = 0.2

`python tests/bucket.py FOLDER` prints the environment and serves until Ctrl-C.

The client connects by HTTPS to the proxy of its environment, which answers in place of Google, with
a certificate that a CA of this bucket has signed. The environment of the process names that CA.
"""

import collections
import http.server
import json
import pathlib
import random
import re
import ssl
import subprocess
import sys
import threading
import time
import urllib.parse

HOSTS = "subjectAltName=DNS:*.googleapis.com"
# Method and path of each request of TensorFlow's client, below the name of a bucket.
KINDS = {
    "list": r"GET /storage/v1/b/[^/]+/o\?",
    "metadata": r"GET /storage/v1/b/[^?]+",
    "get": r"GET /",
    "upload": r"(POST|PUT) /upload/",
    "copy": r"POST /storage/v1/b/[^/]+/o/[^/]+/rewriteTo/",
    "delete": r"DELETE /",
}


class Bucket:
    """The bucket. Its attributes may change while it serves.

    Attributes:
      environment: environment variables of a process that uses it.
      objects: content, generation and time of each object, by bucket and name.
      requests: number of requests by kind.
      failing: share of requests that are answered by 503.
      latency: seconds before each answer.
      outage: None; "refuse" closes connections at once, "hang" answers nothing.
    """

    def __init__(self, folder):
        self.objects, self.requests = {}, collections.Counter()
        self.failing, self.latency, self.outage = 0.0, 0.0, None
        self.uploads, self.random, self.lock = {}, random.Random(0), threading.Lock()
        self.generation = 1
        authority, key = _certificates(pathlib.Path(folder))
        self.tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.tls.load_cert_chain(key)
        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
        self._server.daemon_threads, self._server.bucket = True, self
        proxy = f"http://127.0.0.1:{self._server.server_address[1]}"
        self.environment = {
            "https_proxy": proxy,
            "no_proxy": "",
            "CURL_CA_BUNDLE": str(authority),
            "GOOGLE_AUTH_TOKEN_FOR_TESTING": "token",
        }

    def __enter__(self):
        threading.Thread(target=self._server.serve_forever, args=[0.1], daemon=True).start()
        return self

    def __exit__(self, *_):
        self.outage = None
        self._server.shutdown()
        self._server.server_close()

    def names(self, folder):
        """Returns the names of the objects below a `gs://` path, without it."""
        prefix = folder.removeprefix("gs://") + "/"
        return sorted(n.removeprefix(prefix) for n in list(self.objects) if n.startswith(prefix))

    def read(self, path):
        """Returns the content of an object."""
        return self.objects[path.removeprefix("gs://")][0]

    def put(self, name, content):
        """Writes an object."""
        with self.lock:
            self.generation += 1
            self.objects[name] = content, self.generation, time.time()


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def handle_one_request(self):
        try:
            super().handle_one_request()
        except (OSError, ssl.SSLError):
            self.close_connection = True

    def do_CONNECT(self):  # noqa: N802
        if self._is_out():
            return
        self.send_response_only(200)
        self.end_headers()
        self.connection = self.server.bucket.tls.wrap_socket(self.connection, server_side=True)
        self.rfile = self.connection.makefile("rb")
        self.wfile = self.connection.makefile("wb", buffering=0)

    def do_GET(self):  # noqa: N802
        bucket = self.server.bucket
        content = self._content()
        line = f"{self.command} {self.path}"
        kind = next(kind for kind, pattern in KINDS.items() if re.match(pattern, line))
        bucket.requests[kind] += 1
        time.sleep(bucket.latency)
        if self._is_out():
            return
        if bucket.random.random() < bucket.failing:
            self._answer(503)
        else:
            url = urllib.parse.urlsplit(self.path)
            getattr(self, f"_{kind}")(url.path, dict(urllib.parse.parse_qsl(url.query)), content)

    do_POST = do_PUT = do_DELETE = do_GET  # noqa: N815

    def _is_out(self):
        """Returns whether the bucket is gone; "hang" waits for its return."""
        bucket = self.server.bucket
        is_out = bucket.outage is not None
        while bucket.outage == "hang":
            time.sleep(0.1)
        self.close_connection |= is_out
        return is_out

    def _content(self):
        """Returns the body; TensorFlow sends files in chunks, with a Content-Length as well."""
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        chunks = []
        while size := int(self.rfile.readline(), 16):
            chunks.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(chunks)

    def _answer(self, code, content=b"", **headers):
        self.send_response_only(code)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def _json(self, **fields):
        self._answer(200, json.dumps(fields).encode())

    def _list(self, path, query, content):
        top = f"{path.split('/')[4]}/"
        prefix, delimiter = query.get("prefix", ""), query.get("delimiter")
        names = [n.removeprefix(top) for n in sorted(self.server.bucket.objects)]
        names = [n for n in names if f"{top}{n}" in self.server.bucket.objects]
        names = [n for n in names if n.startswith(prefix)]
        rests = {n: n.removeprefix(prefix).partition(delimiter) for n in names if delimiter}
        folders = {f"{prefix}{rest[0]}/" for rest in rests.values() if rest[1]}
        items = [n for n in names if not delimiter or not rests[n][1]]
        items = items[: int(query.get("maxResults", 1000))]
        self._json(items=[{"name": name} for name in items], prefixes=sorted(folders))

    def _metadata(self, path, query, content):
        _, _, name = path.partition("/b/")
        if "/o/" not in name:  # The bucket itself.
            self._json(name=name)
            return
        found = self._found(name)
        if found is not None:
            updated = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(found[2]))
            updated += f".{int(found[2] % 1 * 1000):03d}Z"
            self._json(size=str(len(found[0])), generation=str(found[1]), updated=updated)

    def _get(self, path, query, content):
        found = self._found(path[1:].replace("/", "/o/", 1))
        if found is None:
            return
        first, last = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers["Range"]).groups()
        part = found[0][int(first) : int(last) + 1]
        self._answer(206 if part else 416, part)

    def _upload(self, path, query, content):
        """Handles the start of an upload, a part of it, or the question how much has arrived."""
        bucket = self.server.bucket
        if self.command == "POST":
            name = f"{path.split('/')[5]}/{query['name']}"
            if query["uploadType"] == "media":  # A folder, unless it exists.
                exists = name in bucket.objects
                if not exists:
                    bucket.put(name, content)
                self._answer(412 if exists else 200)
                return
            with bucket.lock:
                number = str(len(bucket.uploads))
                bucket.uploads[number] = [name, b""]
            self._answer(200, Location=f"https://www.googleapis.com/upload/{number}")
            return
        upload = bucket.uploads[path.rpartition("/")[2]]
        place, total = re.match(
            r"bytes (\S+)/(\d+)", self.headers.get("Content-Range", "bytes */0")
        ).groups()
        if place != "*":
            upload[1] = upload[1][: int(place.split("-")[0])] + content
        if len(upload[1]) == int(total):
            bucket.put(*upload)
            self._json(name=upload[0])
        else:
            arrived = {"Range": f"bytes=0-{len(upload[1]) - 1}"} if upload[1] else {}
            self._answer(308, **arrived)

    def _copy(self, path, query, content):
        source, _, target = path.partition("/rewriteTo/")
        found = self._found(source.partition("/b/")[2])
        if found is not None:
            self.server.bucket.put(_name(target.partition("b/")[2]), found[0])
            self._json(done=True)

    def _delete(self, path, query, content):
        name = path.partition("/b/")[2]
        if self._found(name) is not None:
            self.server.bucket.objects.pop(_name(name), None)
            self._answer(204)

    def _found(self, name):
        """Returns an object by `BUCKET/o/NAME`; answers 404 if there is none."""
        found = self.server.bucket.objects.get(_name(name))
        if found is None:
            self._answer(404)
        return found


def _name(path):
    return urllib.parse.unquote(path.replace("/o/", "/", 1))


def _certificates(folder):
    """Makes a CA and a certificate that it has signed; returns the paths of both."""
    authority, key, request, own = (folder / n for n in ("ca.pem", "ca.key", "r.pem", "own.pem"))
    new = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "30", "-subj"]
    options = ["-addext", "keyUsage=keyCertSign"]
    _run(*new, "/CN=bucket", "-keyout", key, "-out", authority, *options)
    new = ["openssl", "req", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=bucket"]
    _run(*new, "-keyout", own, "-out", request)
    (folder / "names").write_text(HOSTS)
    sign = ["openssl", "x509", "-req", "-CAcreateserial", "-days", "30"]
    files = ["-in", request, "-CA", authority, "-CAkey", key, "-extfile", folder / "names"]
    with own.open("ab") as file:
        file.write(_run(*sign, *files))
    return authority, own


def _run(*command):
    return subprocess.run(command, check=True, capture_output=True).stdout


if __name__ == "__main__":
    with Bucket(sys.argv[1]) as bucket:
        for name, value in bucket.environment.items():
            print(f"export {name}={value}", flush=True)
        threading.Event().wait()
