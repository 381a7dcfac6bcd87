"""Answers clients of MLflow and W&B, or any POST.

Prints `PORT n`, `POINT` for each point that it gets, and `STREAM` when W&B sends a part of a file.
"""

import http.server
import json

RUN = {"info": {"run_id": "1", "experiment_id": "1", "status": "RUNNING"}, "data": {}}
MLFLOW = {"experiment": {"experiment_id": "1"}, "run": RUN, "run_info": RUN["info"]}
PROJECT = {"id": "1", "name": "first", "entity": {"id": "1", "name": "me"}}
BUCKET = {"id": "1", "name": "1", "displayName": "1", "config": "{}", "project": PROJECT}
WANDB = {
    "createRunFiles": {"runID": "1", "uploadHeaders": [], "files": []},
    "upsertBucket": {"bucket": BUCKET, "inserted": True},
}
ANSWER = json.dumps({**MLFLOW, "data": WANDB})


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if "file_stream" in self.path:
            print("STREAM", flush=True)
        for _ in range(body.count(b"train/loss")):
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
