"""Answers MLflow's client, or any POST; prints `PORT n`, and `POINT` for each point it gets."""

import http.server
import json

RUN = {"info": {"run_id": "1", "experiment_id": "1", "status": "RUNNING"}, "data": {}}
ANSWER = json.dumps({"experiment": {"experiment_id": "1"}, "run": RUN, "run_info": RUN["info"]})


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if b"train/loss" in body:
            print("POINT", flush=True)
        self.send_response(200)
        self.end_headers()
        self.wfile.write(ANSWER.encode())

    do_POST = do_GET  # noqa: N815

    def log_message(self, *_):
        pass


if __name__ == "__main__":
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        print("PORT", server.server_port, flush=True)
        server.serve_forever()
