"""TensorBoard with the training and the evaluation of the digits, in headless Chromium."""

import base64
import io
import pathlib
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
import zlib
from typing import Any

from PIL import Image

from docs.pictures import processes, style

_FLAGS = (
    "--gin_file=gin/digits.gin",
    "--gin.TRAIN_STEPS=400",
    "--gin.RunConfig.save_checkpoints_steps=40",
    "--gin.RunConfig.save_summary_steps=20",
    "--gin.EvalSpec.exporters=[]",
)
_BROWSERS = ("chromium", "chromium-browser", "google-chrome")
# The tab Time Series stays empty without a real clock.
_PAGE = "?darkMode=false#scalars&_smoothingWeight=0&tagFilter=%5E(loss%7Caccuracy)%24"
_SIZE = (1100, 520)


def measure() -> dict[str, Any]:
    """Trains the digits, and keeps the event files."""
    with processes.folder() as path:
        processes.run("gin_estimator.main", *_FLAGS, f"--model_dir={path}/digits")
        files = sorted((path / "digits").rglob("events.*"))
        return {"events": {str(file.relative_to(path)): _packed(file) for file in files}}


def _packed(file: pathlib.Path) -> str:
    return base64.b64encode(zlib.compress(file.read_bytes(), 9)).decode()


def draw(data: dict[str, Any]) -> None:
    """Starts TensorBoard on the event files, and takes the picture."""
    browser = next(filter(None, map(shutil.which, _BROWSERS)), None)
    if browser is None:
        print(f"tensorboard is not drawn: expected one of {', '.join(_BROWSERS)}.")
        return
    with processes.folder() as path:
        for name, packed in data["events"].items():
            (path / name).parent.mkdir(parents=True, exist_ok=True)
            (path / name).write_bytes(zlib.decompress(base64.b64decode(packed)))
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
        command = (sys.executable, "-m", "tensorboard.main", f"--logdir={path}", f"--port={port}")
        with subprocess.Popen(command, stderr=subprocess.DEVNULL) as board:
            try:
                _wait_for(f"http://localhost:{port}/data/runs")
                _shoot(browser, f"http://localhost:{port}/{_PAGE}", path / "shot.png")
            finally:
                board.terminate()
        image = Image.open(io.BytesIO((path / "shot.png").read_bytes())).convert("RGB")
    image.quantize(48).save(style.IMG / "tensorboard.png", optimize=True)


def _wait_for(url: str) -> None:
    """Waits until TensorBoard has found a run."""
    for _ in range(120):
        time.sleep(0.5)
        try:
            if b"digits" in urllib.request.urlopen(url).read():
                return
        except OSError:
            continue
    raise RuntimeError(f"{url} has no run after 60 s.")


def _shoot(browser: str, url: str, file: pathlib.Path) -> None:
    flags = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking")
    size = ",".join(map(str, _SIZE))
    options = (f"--window-size={size}", "--virtual-time-budget=40000", f"--screenshot={file}")
    profile = f"--user-data-dir={file.parent / 'profile'}"
    subprocess.run([browser, *flags, *options, profile, url], check=True, capture_output=True)
