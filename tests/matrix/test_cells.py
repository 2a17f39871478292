"""Turns, causes and places: on the real vocabularies, and on vLLM's own classes in this process."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from prr_plugins.common.parsing.stream_parser import parse
from prr_testing.matrix.blame import Tracer
from prr_testing.matrix.turns import ROWS, WRITERS, Impossible, write
from prr_testing.models import model_dir
from prr_testing.tokens import Vocabulary, load_tokenizer


@pytest.fixture(scope="module", params=list(WRITERS))
def vocabulary(request: pytest.FixtureRequest) -> tuple[str, Vocabulary]:
    return request.param, Vocabulary(load_tokenizer(model_dir(request.param)))


def test_every_row_is_written_in_the_models_own_format(vocabulary: tuple[str, Vocabulary]) -> None:
    model, tokens = vocabulary
    texts = {}
    for row in ROWS:
        try:
            turn = write(model, row, tokens)
        except Impossible:
            assert (model, row.name) == ("gpt-oss", "parallel_calls")
            continue
        spelled = tokens.text_of(turn.ids)
        assert spelled.startswith(turn.text)
        assert (spelled == turn.text) == turn.cut
        tail = "<|start|>assistant" if model == "gpt-oss" else "<think>"
        result = parse(turn.format, turn.text, tools=turn.tools, prompt_tail=tail,
                       finish_reason="length" if turn.cut else "stop")  # fmt: skip
        calls = {"parallel_calls": 2, "reasoning_cut": 0, "final_answer": 0, "content_cut": 0}.get(row.name, 1)
        assert len(result.parsed_tool_calls) == calls, row.name
        assert result.reasoning
        texts[row.name] = (turn.text, turn.ids)
    assert texts["bpe_seam"][0] == texts["reasoning_kept"][0]
    assert texts["bpe_seam"][1] != texts["reasoning_kept"][1]


def test_the_tracer_finds_the_line(tmp_path: Path) -> None:
    source = tmp_path / "vllm" / "sample.py"
    source.parent.mkdir()
    source.write_text(
        "class Parser:\n"
        "    def parse(self, text):\n"
        "        reasoning, _, content = text.partition('|')\n"
        "        self.reasoning = reasoning.strip()\n"
        "        return self.close(self.reasoning + '!'), content\n"
        "    def close(self, text):\n"
        "        return text.upper()\n"
    )
    spec = importlib.util.spec_from_file_location("vllm.sample", source)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    tracer = Tracer(source.parent)
    tracer.run(lambda: module.Parser().parse(" so |it goes"))
    found = tracer.first("so")
    assert found is not None
    assert found == ("vllm/sample.py", 4, "self.reasoning = reasoning.strip()")
    lines = {text: found.line for text in (" so ", "it goes", "so!", "SO!") if (found := tracer.first(text))}
    assert lines == {" so ": 3, "it goes": 3, "so!": 5, "SO!": 7}
    assert tracer.first("never") is None
    assert tracer.first_holding("O!") == ("vllm/sample.py", 7, "return text.upper()")
