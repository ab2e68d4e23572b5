"""Prompt format: render and parse are inverse, garbage never raises, windows show what they say."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from agentgym.rollouts.prompt_format import ACT, UNDONE, PromptFormat, content, render_call, results_of, text_of
from agentgym.spec import EnvSpec, ToolSpec

SPEC = EnvSpec(id="w", description="d", instructions="Walk.\n", max_turns=3)
CLICK = ToolSpec(name="click", parameters={"type": "object", "properties": {"x": {}}, "required": ["x"]})
TOOLS = SPEC.model_copy(update={"tools": (CLICK, ToolSpec(name="wait"))})
TALK = EnvSpec.model_validate({**TOOLS.model_dump(), "text_tool": "click", "action_format": "tool_call"})

stripped = st.text(min_size=1).map(str.strip).filter(bool)
one_line = stripped.filter(lambda text: len(text.splitlines()) == 1 and text.splitlines()[0] == text)
untagged = stripped.filter(lambda text: "<action>" not in text and "</action>" not in text)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
clicks = st.dictionaries(st.text(), json_values, max_size=3).map(
    lambda more: {"name": "click", "arguments": {**more, "x": more.get("x", 1)}}
)


@given(one_line)
def test_last_line_round_trip(action):
    prompt_format = PromptFormat(grammar="last_line")
    assert prompt_format.parse(f"I think.\n\n{prompt_format.render(action, SPEC)}\n \n", SPEC).action == action


@given(untagged, st.text())
def test_tagged_round_trip(action, thought):
    prompt_format = PromptFormat(grammar="tagged")
    assert prompt_format.parse(prompt_format.render(action, SPEC), SPEC).action == action
    assert (
        prompt_format.parse(f"{thought} <action> {prompt_format.render(action, SPEC)} {action}", SPEC).action == action
    )


@given(st.text())
def test_text_actions_round_trip_through_the_act_tool(action):
    prompt_format = PromptFormat(grammar="tool_call")
    assert prompt_format.parse(prompt_format.render(action, SPEC), SPEC).action == action


@given(clicks, st.text())
def test_tool_calls_round_trip(call, thought):
    prompt_format = PromptFormat(grammar="tool_call")
    assert prompt_format.parse(prompt_format.render(call, TOOLS), TOOLS).action == call
    assert prompt_format.parse(f"{thought}<tool_call>{prompt_format.render(call, TOOLS)}", TOOLS).action == call


@pytest.mark.parametrize("grammar", ["last_line", "tagged"])
def test_tool_calls_round_trip_in_text_grammars(grammar):
    prompt_format, call = PromptFormat(grammar=grammar), {"name": "click", "arguments": {"x": [1, "a"]}}
    assert prompt_format.parse(prompt_format.render(call, TOOLS), TOOLS).action == call
    for text in ('{"name": "jump", "arguments": {}}', "{broken", "[" * 100_000, '{"name": "click"}', "click 3"):
        rendered = prompt_format.render(text, TOOLS)
        assert prompt_format.parse(rendered, TOOLS).action == text, "text that is no call here stays text"


def test_a_tag_inside_an_argument_does_not_end_the_call():
    prompt_format = PromptFormat(grammar="tool_call")
    call = {"name": "click", "arguments": {"x": "</tool_call><tool_call>{}"}}
    assert prompt_format.parse(render_call(call), TOOLS).action == call


@pytest.mark.parametrize(
    ("reply", "problem"),
    [
        ("", "not a JSON tool call"),
        ("I will click.", "not a JSON tool call"),
        ("<tool_call>{</tool_call>", "not a JSON tool call"),
        ("[" * 100_000, "not a JSON tool call (RecursionError)"),
        ("[1]", "a tool call is"),
        ('{"name": "click", "arguments": [1]}', "a tool call is"),
        ('{"name": ["click"], "arguments": {}}', "names no tool"),
        ('{"arguments": {}}', "names no tool"),
        ('{"name": "jump", "arguments": {}}', "there is no tool 'jump'; there are click, wait"),
        ('{"name": "click", "arguments": {"y": 1}}', "click needs x"),
    ],
)
def test_garbage_in_place_of_a_call_is_complained_of(reply, problem):
    parsed = PromptFormat(grammar="tool_call").parse(reply, TOOLS)
    assert parsed.action is None
    assert problem in parsed.problem


@pytest.mark.parametrize(
    ("reply", "text"),
    [
        ("May I have your e-mail address?", "May I have your e-mail address?"),
        ("<think>They want {this}.</think>\n\n **Of course.**\nOne moment. ", "**Of course.**\nOne moment."),
        ("The <action>word</action> is: {}", "The <action>word</action> is: {}"),
    ],
)
def test_a_reply_without_a_call_is_one_of_the_text_tool(reply, text):
    assert PromptFormat().parse(reply, TALK).action == {"name": "click", "arguments": {"x": text}}
    assert PromptFormat().parse(reply, TOOLS.model_copy(update={"action_format": "tool_call"})).action is None


@pytest.mark.parametrize(
    "reply",
    [
        "",
        " \n",
        "<think>Done.</think>",
        "<think>They want",
        '{"name": "jump", "arguments": {}}',
        '{"name": "click", "arg',
        "```json\n{}\n```",
        "[1]",
        "I look. <tool_call>{}",
        "Let me see. <tool_call>{</tool_call>",
    ],
)
def test_what_tries_to_be_a_call_is_not_taken_for_text(reply):
    parsed = PromptFormat().parse(reply, TALK)
    assert parsed.action is None
    assert parsed.problem


def test_calls_are_read_beside_a_text_tool_too():
    call = {"name": "wait", "arguments": {}}
    assert PromptFormat().parse("I wait.", TALK, [call]).action == call
    assert PromptFormat().parse(f"I wait. {render_call(call)}", TALK).action == call
    assert PromptFormat().instructions(TALK).endswith("A reply without a call counts as click with its text.")
    assert "without a call" not in PromptFormat(grammar="tagged").instructions(TALK)


@pytest.mark.parametrize("name", ["wait", "jump"])
def test_a_text_tool_takes_one_argument(name):
    with pytest.raises(ValidationError, match=f"text_tool is a tool with one required argument, and '{name}' is not"):
        EnvSpec.model_validate({**TOOLS.model_dump(), "text_tool": name})


@given(st.text(), st.sampled_from(["last_line", "tagged", "tool_call"]), st.sampled_from([SPEC, TOOLS, TALK]))
def test_parse_never_raises_and_gives_an_action_or_a_problem(reply, grammar, spec):
    parsed = PromptFormat(grammar=grammar).parse(reply, spec)
    assert (parsed.action is None) == bool(parsed.problem)


def test_the_last_action_counts():
    assert PromptFormat(grammar="tagged").parse("<action>up</action> no: <action>down</action>", SPEC).action == "down"
    assert PromptFormat(grammar="tagged").parse("<action> </action>", SPEC).problem.startswith("the reply had an empty")
    assert PromptFormat(grammar="tagged").parse("up", SPEC).problem.startswith("the reply had no")
    assert PromptFormat(grammar="last_line").parse(" \n ", SPEC).problem == "the reply was empty"


@pytest.mark.parametrize(
    ("reply", "action"),
    [
        ("```\ngo south\n```", "go south"),
        ("I go.\n```text\ngo south\n```\n", "go south"),
        ("<think>let me see</think>go south", "go south"),
        ("no tag before it</think>\n\ngo south", "go south"),
        ("```", "```"),
        ("<think>maybe\ngo south", None),
        ("<think>maybe</think>\n", None),
    ],
)
def test_the_last_line_is_no_code_fence_and_no_thought(reply, action):
    parsed = PromptFormat(grammar="last_line").parse(reply, SPEC)
    assert parsed.action == action
    assert parsed.problem == ("" if action else "the reply had nothing after its thoughts")


@pytest.mark.parametrize("as_text", [False, True])
def test_several_tool_calls_are_all_the_action_or_none_is(as_text):
    good = [{"name": "click", "arguments": {"x": 1}}, {"name": "wait", "arguments": {}}]
    for calls, problem in (
        (good, ""),
        ([*good, {"name": "fly", "arguments": {}}], "in call 3 there is no tool 'fly'; there are click, wait"),
        ([{"name": "click", "arguments": {}}, *good], "in call 1 click needs x"),
    ):
        text, native = ("\n".join(map(render_call, calls)), ()) if as_text else ("anything", calls)
        parsed = PromptFormat(grammar="tool_call").parse(text, TOOLS, native)
        assert parsed.action == (None if problem else good)
        count = len(calls)
        assert parsed.problem == (problem and f"the reply made {count} tool calls and none was carried out; {problem}")


def test_llama_calls_arguments_parameters():
    reply = '{"name": "click", "parameters": {"x": 1}}'
    assert PromptFormat(grammar="tool_call").parse(reply, TOOLS).action == {"name": "click", "arguments": {"x": 1}}


@given(st.lists(clicks, min_size=2, max_size=4), st.lists(st.text(), min_size=2, max_size=4))
def test_several_tool_calls_round_trip(calls, texts):
    prompt_format = PromptFormat(grammar="tool_call")
    for actions, spec in ((calls, TOOLS), (texts, SPEC)):
        assert prompt_format.parse(f"So:\n{prompt_format.render(actions, spec)}", spec).action == actions


def test_auto_follows_the_action_format_of_the_spec():
    tools = EnvSpec.model_validate({**SPEC.model_dump(exclude={"action_format"}), "tools": [CLICK.model_dump()]})
    tagged = SPEC.model_copy(update={"action_format": "tagged"})
    assert [PromptFormat().action_format(spec) for spec in (SPEC, tagged, tools)] == [
        "last_line",
        "tagged",
        "tool_call",
    ]
    for spec in (SPEC, tagged, tools):
        named = PromptFormat(grammar=spec.action_format)
        assert PromptFormat().instructions(spec) == named.instructions(spec)
        assert PromptFormat().tools(spec) == named.tools(spec)
    assert PromptFormat(grammar="last_line").action_format(tools) == "last_line"


def test_a_tagged_action_of_several_lines_keeps_its_end():
    prompt_format = PromptFormat(grammar="tagged")
    for action in ("edit a.py 1-2\n    x = 1\n\n", "run cat <<E\n  a\nE", "edit a.py 1-1\n  x"):
        assert prompt_format.parse(f"So:\n{prompt_format.render(action, SPEC)}\n", SPEC).action == action
    assert prompt_format.parse("<action>\nup\n</action>", SPEC).action == "up"


def test_an_offered_action_that_spells_a_call_is_that_call():
    prompt_format, call = PromptFormat(grammar="tool_call"), {"name": "click", "arguments": {"x": 1}}
    assert prompt_format.parse(prompt_format.render(json.dumps(call), TOOLS), TOOLS).action == call
    assert "not a JSON tool call" in prompt_format.parse(prompt_format.render("click 1", TOOLS), TOOLS).problem


def test_a_message_with_tool_calls_is_answered_by_their_ids():
    calls = [{"id": name, "type": "function", "function": {"name": "wait", "arguments": "{}"}} for name in "ab"]
    response = {"role": "assistant", "content": None, "tool_calls": calls}
    prompt_format = PromptFormat(grammar="tool_call", system="")
    first, *rest = prompt_format.messages(TOOLS, [("one", response)], "two")
    assert first == {"role": "user", "content": "one"}
    assert rest == [response, *({"role": "tool", "tool_call_id": name, "content": "two"} for name in "ab")]
    assert PromptFormat(system="", window=0).messages(TOOLS, [("one", response)], "two") == [
        {"role": "user", "content": "two"}
    ]
    picture = {"text": "see", "image": np.zeros((2, 3, 3), np.uint8)}
    for results, texts in ((["one", "two"], ["one", "two"]), ([picture], ["see", UNDONE])):
        messages = prompt_format.messages(TOOLS, [("one", response)], results_of(results))
        answers = [{"role": "tool", "tool_call_id": i, "content": text} for i, text in zip("ab", texts, strict=True)]
        assert messages[2:4] == answers
        assert [part["type"] for message in messages[4:] for part in message["content"]] == ["image_url"] * (
            picture in results
        )
    observation = {"text": "two", "image": np.zeros((2, 3, 3), np.uint8)}
    *_, tool, image = prompt_format.messages(TOOLS, [("one", response)], observation)
    assert tool == {"role": "tool", "tool_call_id": "b", "content": "two"}
    assert (image["role"], [part["type"] for part in image["content"]]) == ("user", ["image_url"])


def test_tools_are_offered_only_where_calls_are_spoken():
    assert PromptFormat(grammar="tagged").tools(TOOLS) == ()
    assert PromptFormat(grammar="tool_call").tools(TOOLS) == TOOLS.tools
    assert PromptFormat(grammar="tool_call").tools(SPEC) == (ACT,)


@given(
    st.lists(st.tuples(st.text(), st.text())), st.none() | st.integers(0, 5), st.sampled_from([None, "", "Be brief."])
)
def test_messages_show_the_window_and_nothing_else(history, window, system):
    messages = PromptFormat(window=window, system=system).messages(SPEC, history, "now")
    shown = history if window is None else history[max(0, len(history) - window) :]
    expected = [] if system == "" else [("system", system or "Walk.\nReply with one action on the last line.")]
    for observation, reply in shown:
        expected += [("user", observation), ("assistant", reply)]
    assert [(message["role"], message["content"]) for message in messages] == [*expected, ("user", "now")]


def test_an_image_travels_as_a_png_in_a_data_url():
    observation = {"text": "a square", "image": np.zeros((2, 3, 3), np.uint8)}
    text, image = content(observation)
    assert text == {"type": "text", "text": "a square"}
    assert image["image_url"]["url"].startswith("data:image/png;base64,iVBORw0KGgo")
    assert text_of(observation) == "a square"
    json.dumps(PromptFormat().messages(SPEC, [(observation, "go")], observation))


def test_a_complaint_says_what_was_wrong_and_how_to_reply():
    complaint = PromptFormat(grammar="tagged").invalid_action_message(SPEC, "the reply was empty")
    assert complaint == "No action taken: the reply was empty. Reply with one action as <action>...</action>."
    assert PromptFormat(system="x").invalid_action_message(SPEC, "why") == "No action taken: why."


def test_unknown_and_impossible_fields_are_refused():
    with pytest.raises(ValidationError, match="gramar"):
        PromptFormat(gramar="tagged")
    with pytest.raises(ValidationError, match="window"):
        PromptFormat(window=-1)
    with pytest.raises(ValidationError, match="invalid_penalty"):
        PromptFormat(invalid_penalty=-1.0)
