"""The engine's process: `python -m quintain.policies.local.server FD`.

It reads requests from the socket FD and answers on it, and ends with its owner: at the end of the
stream, or when its parent is another (a forked sibling may hold the owner's end of the socket).
"""

from __future__ import annotations

import os
import queue
import socket
import sys
import threading
import time
import traceback
from dataclasses import asdict
from pathlib import Path

import torch

from quintain.errors import ConfigError
from quintain.policies.local import wire
from quintain.policies.local.decoder import Decoder, Rows
from quintain.policies.local.engine import Engine, Finished, Request
from quintain.policies.local.folders import probe_ids, saved_probe
from quintain.policies.local.kv import Slots
from quintain.policies.local.llama import decoder_for
from quintain.policies.local.model import Model, load_model
from quintain.policies.local.spec import ModelSpec
from quintain.record import Json


class Server:
    """Owns the model and the engine; one thread reads, the main one computes."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._inbox: queue.SimpleQueue[Json] = queue.SimpleQueue()
        self._model: Model
        self._decoder: Decoder
        self._engine: Engine

    def run(self) -> None:
        """Serves until the owner is gone."""
        threading.Thread(target=self._read, daemon=True).start()
        threading.Thread(target=_watch_parent, args=(os.getppid(),), daemon=True).start()
        self._load(self._inbox.get())
        while True:
            self._take_messages()
            if self._engine.busy:
                for finished in self._engine.step():
                    self._answer(finished)

    def _read(self) -> None:
        while (message := wire.receive(self._connection)) is not None:
            self._inbox.put(message)
        os._exit(0)

    def _load(self, message: Json) -> None:
        spec = ModelSpec(**message["spec"])
        self._model = load_model(spec, tools=message["tools"])
        self._decoder = decoder_for(self._model)
        self._engine = Engine(
            self._decoder,
            slots=message["slots"],
            prefix_bytes=message["prefix_bytes"],
            decode_text=self._model.template.decode,
        )
        found = self._take_weights(message["published"]) if message["published"] else {}
        self._send(
            {
                "id": message["id"],
                "folder": str(self._model.folder),
                "max_context": self._model.max_context,
                **found,
            }
        )

    def _take_messages(self) -> None:
        """Handles what has come; waits for something when there is nothing to compute."""
        while True:
            try:
                message = self._inbox.get(block=not self._engine.busy)
            except queue.Empty:
                return
            self._handle(message)

    def _handle(self, message: Json) -> None:
        operation = message["op"]
        if operation == "generate":
            for fields in message["requests"]:
                self._engine.submit(_request(fields))
        elif operation == "cancel":
            self._engine.cancel(message["request"])
        elif operation == "update":
            try:
                answer = self._take_weights(message["published"])
            except ConfigError as error:
                answer = {"error": str(error)}
            self._send({"id": message["id"], **answer})
        elif operation == "threads":
            torch.set_num_threads(message["threads"])
            self._send({"id": message["id"]})
        elif operation == "forget":
            self._engine.forget()
            self._send({"id": message["id"]})
        elif operation == "counters":
            self._send({"id": message["id"], **asdict(self._engine.counters)})
        else:
            raise ValueError(f"unknown operation {operation!r}")

    def _take_weights(self, published: Json) -> dict[str, Json]:
        """Loads published weights and says what the sampler now computes with them."""
        path = Path(published["path"])
        digest = self._model.load(path)
        self._decoder.refresh()
        self._engine.update(published["version"])
        return {"hash": digest, "probe": self._probe(), "learner_probe": saved_probe(path)}

    def _probe(self) -> list[float]:
        """The probe's log-probabilities by the path that samples: token by token, cached."""
        ids = probe_ids(self._model.template.vocabulary_size)
        slots = Slots(self._decoder.shape, 1, len(ids))
        logprobs = []
        for place in range(len(ids) - 1):
            rows = Rows(slots=[0], cached=[place], new=[[ids[place]]])
            row = self._decoder.forward(rows, slots).float().log_softmax(-1)[0]
            logprobs.append(float(row[ids[place + 1]]))
        return logprobs

    def _answer(self, finished: Finished) -> None:
        self._send(
            {
                "id": finished.id,
                "segments": [asdict(segment) for segment in finished.segments],
                "finish": finished.finish,
                "cached": finished.cached,
            }
        )

    def _send(self, message: Json) -> None:
        try:
            wire.send(self._connection, message)
        except OSError:
            os._exit(0)


def _request(fields: Json) -> Request:
    return Request(
        **{
            **fields,
            "ids": tuple(fields["ids"]),
            "end_ids": frozenset(fields["end_ids"]),
            "stop": tuple(fields["stop"]),
        }
    )


def _watch_parent(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(0)


def main() -> None:
    """Serves on the inherited socket; a fault is told to the owner, then ends the process."""
    connection = socket.socket(fileno=int(sys.argv[1]))
    try:
        Server(connection).run()
    except BaseException as error:
        traceback.print_exc()
        text = f"{type(error).__name__}: {error}"
        kind = "config" if isinstance(error, ConfigError) else "fault"
        wire.send(connection, {"fatal": text, "kind": kind})
        raise SystemExit(1) from error


if __name__ == "__main__":
    main()
