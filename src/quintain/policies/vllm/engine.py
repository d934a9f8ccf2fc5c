"""A vLLM server as an engine: the operations of `Engine`, said in vLLM's HTTP routes.

Tokens go in and come out as ids (`/inference/v1/generate`), with their log-probabilities as sampled
and, from vLLM itself, the label of the weights that sampled each. New weights are taken between
tokens: (1) `/pause` ends what is in flight and gives back what it has so far, (2) `quintain_update`
loads the published file in every worker, and the label becomes the new version, (3) after `/resume`
a probe goes through the model as any prompt does, and its log-probabilities are compared with the
learner's, (4) what was in flight goes on from its tokens in a new segment, its keys and values
computed anew.

All of it runs on an event loop of its own, so that a policy may be used from several.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import threading
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp

from quintain.errors import ConfigError, PolicyError
from quintain.policies.local.folders import model_folder, probe_ids, saved_probe
from quintain.policies.local.spec import ModelSpec
from quintain.policies.local.template import Template
from quintain.policies.local.toolcalls import tool_format
from quintain.policies.vllm.server import Server
from quintain.record import Json, derive_seed

_NUMBERS = itertools.count(1)
CALL_S = 3600.0
"""Deadline of one request to the server, its time in the server's queue included."""
UPDATE_S = 600.0
READY_S = 870.0
"""Until a server has loaded its model."""


class VllmEngine:
    """One server.

    Args:
        server: None: one that others started, at `address`.
        address: "http://host:port"; with a server of our own the host means nothing.
    """

    def __init__(self, server: Server | None, address: str = "http://vllm") -> None:
        self._server = server
        self._address = address.rstrip("/").removesuffix("/v1")
        self._spec: ModelSpec
        self._folder = ""
        self._probe_ids: list[int] = []
        self._updates = 0
        """Attempted; what is interrupted by one goes on, what is interrupted by none is a fault."""
        self._tasks: dict[int, Future[Json]] = {}
        self._counters = {"prompt_tokens": 0, "prefilled_tokens": 0, "sampled_tokens": 0}
        self._fault: Exception | None = None
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._open = asyncio.Event()
        self._turn = asyncio.Lock()
        self._client: aiohttp.ClientSession = self._run(self._connect()).result()

    # --- what an `Engine` does ---------------------------------------------------------------

    @property
    def pid(self) -> int:
        """Of the server's keeper; 0 when others started it."""
        return self._server.pid if self._server is not None else 0

    @property
    def alive(self) -> bool:
        """Whether it can be asked."""
        return self._fault is None and (self._server is None or self._server.alive)

    def number(self) -> int:
        """A fresh number for a request."""
        return next(_NUMBERS)

    def ask(self, message: Json) -> Future[Json]:
        """Sends an operation; the future holds its answer, or fails when the server does."""
        operations = {
            "load": self._load,
            "update": self._update,
            "forget": self._forget,
            "counters": self._count,
        }
        if message["op"] not in operations:
            raise ConfigError(f"a vLLM server cannot do {message['op']!r}")
        return self._run(operations[message["op"]](message))

    def submit(self, message: Json, numbers: list[int]) -> list[Future[Json]]:
        """Sends requests; each is answered by its own future."""
        futures = []
        for number, request in zip(numbers, message["requests"], strict=True):
            future = self._run(self._generate(request))
            self._tasks[number] = future
            future.add_done_callback(partial(self._forget_task, number))
            futures.append(future)
        return futures

    def _forget_task(self, number: int, _: Future[Json]) -> None:
        self._tasks.pop(number, None)

    def drop(self, number: int) -> None:
        """Nobody waits for that answer any more: the server is told by the connection's end."""
        future = self._tasks.get(number)
        if future is not None:
            future.cancel()

    def close(self) -> None:
        """Ends the server, when it is ours, and everything on its loop."""
        if self._fault is None:
            self._fault = PolicyError("the engine was closed")
        if self._server is not None:
            self._server.close()
        if self._thread.is_alive():
            with contextlib.suppress(TimeoutError):
                self._run(self._disconnect()).result(timeout=10.0)
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(timeout=10.0)
            self._loop.close()

    def _run(self, coroutine: Any) -> Future[Any]:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    async def _connect(self) -> aiohttp.ClientSession:
        connector = (
            aiohttp.TCPConnector(limit=0)
            if self._server is None
            else aiohttp.UnixConnector(str(self._server.socket), limit=0)
        )
        return aiohttp.ClientSession(connector=connector)

    async def _disconnect(self) -> None:
        await self._client.close()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    # --- loading and weights -----------------------------------------------------------------

    async def _load(self, message: Json) -> Json:
        self._spec = ModelSpec(**message["spec"])
        folder = await asyncio.to_thread(model_folder, self._spec)
        template = await asyncio.to_thread(Template, folder, tool_format(message["tools"]))
        self._folder = str(folder)
        self._probe_ids = probe_ids(template.vocabulary_size)
        await self._until_ready()
        (model,) = (await self._call("GET", "/v1/models"))["data"]
        if message["published"]:
            found = await self._take(message["published"])
        else:
            found = {}
            await self._label(0)
        self._open.set()
        return {
            "folder": self._folder,
            "max_context": min(self._spec.max_context, int(model["max_model_len"])),
            **found,
        }

    async def _until_ready(self) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + READY_S
        while loop.time() < deadline:
            if self._server is not None and not self._server.alive:
                raise ConfigError(f"vLLM cannot serve {self._folder}: {self._server.epitaph()}")
            with contextlib.suppress(aiohttp.ClientError, OSError):
                async with self._client.get(f"{self._address}/health") as response:
                    if response.status == 200:
                        return
            await asyncio.sleep(0.2)
        raise PolicyError(f"no vLLM server is ready at {self._address} after {READY_S:.0f} s")

    async def _update(self, message: Json) -> Json:
        async with self._turn:
            self._open.clear()
            self._updates += 1
            try:
                await self._call("POST", "/pause", {"mode": "abort"}, timeout_s=UPDATE_S)
                return await self._take(message["published"], paused=True)
            finally:
                self._open.set()

    async def _take(self, published: Json, paused: bool = False) -> Json:
        """Loads published weights; what the server then computes with them."""
        asked = {
            "path": published["path"],
            "base": self._folder,
            "scale": self._spec.lora_scale,
            "dtype": self._spec.dtype,
            "expected": published["hash"],
        }
        body = {"method": "quintain_update", "kwargs": asked, "timeout": UPDATE_S}
        try:
            answer = await self._call("POST", "/collective_rpc", body=body, timeout_s=UPDATE_S)
            found: Json = answer["results"][0]
            if any(other != found for other in answer["results"]):
                # No hash is told, so that nobody vouches for these weights.
                return {"hash": f"several: {answer['results']}", "probe": [], "learner_probe": []}
            if "error" in found:
                return found
            # Keys and values of the old weights must serve nobody.
            await self._call("POST", "/reset_prefix_cache", timeout_s=UPDATE_S)
            await self._label(published["version"])
        finally:
            if paused:
                await self._call("POST", "/resume", timeout_s=UPDATE_S)
        learner = saved_probe(Path(published["path"]))
        return {"hash": found["hash"], "probe": await self._probe(), "learner_probe": learner}

    async def _label(self, version: int) -> None:
        """What vLLM says of tokens from now on."""
        await self._call("POST", "/update_weight_version", body={"new_version": str(version)})

    async def _probe(self) -> list[float]:
        """The probe's log-probabilities, by the way that prompts take."""
        how = {"max_tokens": 1, "temperature": 1.0, "prompt_logprobs": 0}
        answer = await self._call(
            "POST",
            "/inference/v1/generate",
            body={"token_ids": self._probe_ids, "sampling_params": how},
            timeout_s=UPDATE_S,
        )
        places = answer["prompt_logprobs"][1:]
        return [
            place[str(token)]["logprob"]
            for place, token in zip(places, self._probe_ids[1:], strict=True)
        ]

    # --- sampling ----------------------------------------------------------------------------

    async def _generate(self, request: Json) -> Json:
        segments: list[dict[str, Any]] = []
        cached: int | None = None
        while True:
            await asyncio.wait_for(self._open.wait(), UPDATE_S)
            updates = self._updates
            sampled = [token for segment in segments for token in segment["ids"]]
            answer = await self._complete(request, sampled)
            choice, usage = answer["choices"][0], answer["usage"]
            reused = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
            cached = reused if cached is None else cached
            self._counters["prompt_tokens"] += 0 if sampled else len(request["ids"])
            self._counters["prefilled_tokens"] += usage["prompt_tokens"] - reused
            self._counters["sampled_tokens"] += len(choice["token_ids"] or ())
            segments += _segments(choice)
            if choice["finish_reason"] == "abort":
                if updates == self._updates:
                    raise PolicyError("vLLM ended a request that nobody had cancelled")
                if request["stop"]:
                    # The server looks for stop strings in what it samples itself, so a string
                    # across the border would be missed: the call begins anew.
                    segments.clear()
                if sum(len(segment["ids"]) for segment in segments) < request["max_tokens"]:
                    continue
            finish = "stop" if choice["finish_reason"] == "stop" else "length"
            return {"segments": segments, "finish": finish, "cached": cached}

    async def _complete(self, request: Json, sampled: list[int]) -> Json:
        """One call of the server: the request's tokens so far, continued."""
        seed = request["seed"] if not sampled else derive_seed(request["seed"], len(sampled))
        how = {
            "max_tokens": request["max_tokens"] - len(sampled),
            "temperature": request["temperature"],
            "top_p": request["top_p"],
            "top_k": request["top_k"],
            "min_p": request["min_p"],
            "seed": seed % (1 << 63),
            "stop": list(request["stop"]),
            "stop_token_ids": list(request["end_ids"]),
            # The end tokens above are all; the model's own would come on top of them.
            "ignore_eos": True,
            "logprobs": 0,
            # Text is made only to look for stop strings in it.
            "detokenize": bool(request["stop"]),
            "skip_special_tokens": False,
        }
        body = {"token_ids": [*request["ids"], *sampled], "sampling_params": how}
        return await self._call("POST", "/inference/v1/generate", body=body)

    async def _forget(self, message: Json) -> Json:
        await self._call("POST", "/reset_prefix_cache")
        return {}

    async def _count(self, message: Json) -> Json:
        return dict(self._counters)

    # --- HTTP --------------------------------------------------------------------------------

    async def _call(
        self,
        method: str,
        path: str,
        query: dict[str, str] | None = None,
        *,
        body: Json = None,
        timeout_s: float = CALL_S,
    ) -> Json:
        """One request; what it says, as JSON."""
        if self._fault is not None:
            raise self._fault
        limit = aiohttp.ClientTimeout(total=timeout_s)
        try:
            async with self._client.request(
                method, self._address + path, params=query, json=body, timeout=limit
            ) as response:
                text = await response.text()
                status = response.status
        except TimeoutError as error:
            raise PolicyError(f"vLLM did not answer {path} within {timeout_s:.0f} s") from error
        except (aiohttp.ClientError, OSError) as error:
            raise await self._lost(path, error) from error
        if status in (400, 403, 404, 405, 422):
            raise ConfigError(f"vLLM refuses {path} ({status}): {text[:500]}")
        if status != 200:
            raise await self._lost(path, f"status {status}: {text[:500]}")
        return json.loads(text) if text else None

    async def _lost(self, path: str, why: object) -> PolicyError:
        """What to raise after a call failed; a server that is dying is given time to be dead."""
        if self._server is None:
            return PolicyError(f"vLLM at {self._address} failed at {path}: {why}")
        for _ in range(50):
            if not self._server.alive:
                fault = PolicyError(self._server.epitaph())
                self._fault = self._fault or fault
                return fault
            await asyncio.sleep(0.1)
        if not await self._healthy():
            # Its engine is gone and it did not notice: the next call starts another.
            self._fault = self._fault or PolicyError(f"the vLLM server is not healthy: {why}")
        return PolicyError(f"vLLM failed at {path}: {why}")

    async def _healthy(self) -> bool:
        limit = aiohttp.ClientTimeout(total=10.0)
        try:
            async with self._client.get(f"{self._address}/health", timeout=limit) as response:
                return response.status == 200
        except (aiohttp.ClientError, OSError, TimeoutError):
            return False


def _segments(choice: Json) -> list[dict[str, Any]]:
    """What was sampled, one segment for each version of the weights.

    Raises:
        PolicyError: vLLM does not say which weights sampled a token, or how likely it was.
    """
    ids = choice["token_ids"] or []
    if not ids:
        return []
    logprobs = [place["logprob"] for place in choice["logprobs"]["content"]]
    spans = choice.get("weight_versions") or []
    if len(logprobs) != len(ids) or sum(span["end"] - span["start"] for span in spans) != len(ids):
        raise PolicyError(
            f"vLLM gave {len(ids)} tokens, {len(logprobs)} log-probabilities and the weights "
            f"{spans}: a version that says which weights sampled each token is needed (0.32)"
        )
    return [
        {
            "version": int(span["version"]),
            "ids": ids[span["start"] : span["end"]],
            "logprobs": logprobs[span["start"] : span["end"]],
        }
        for span in spans
    ]
