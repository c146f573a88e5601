"""YAML files, overrides and interpolations; and the command."""

import json

import pytest
from typer.testing import CliRunner

from grpo_api.verl_import import Source, VerlImportError, import_verl
from grpo_api.verl_import.hydra import parse_value
from grpo_api.verl_import.yaml_source import read_yaml
from grpoctl.main import app

ACTOR, ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
YAML = """\
algorithm: {adv_estimator: grpo}
data:
  train_files: /data/train.parquet
  train_batch_size: 64
  max_prompt_length: 1000
  max_response_length: ${data.max_prompt_length}
actor_rollout_ref:
  model: {path: m}
  actor:
    ppo_mini_batch_size: ${data.train_batch_size}
    ppo_micro_batch_size_per_gpu: 4
    optim: {lr: 1e-6}
  rollout: {n: 8, log_prob_micro_batch_size_per_gpu: "${..actor.ppo_micro_batch_size_per_gpu}"}
"""


def run(text, *overrides, **more):
    sources = [Source.file("c.yaml", text), *(Source.override(item) for item in overrides)]
    job, report = import_verl(sources, **more)
    return job["spec"], report


def faults(text, *overrides, **more):
    with pytest.raises(VerlImportError) as error:
        run(text, *overrides, **more)
    return [str(fault) for fault in error.value.faults]


def test_yaml_with_interpolations():
    spec, report = run(YAML)
    assert spec["data"]["maxResponseLength"] == 1000
    assert spec["actor"]["ppoMiniBatchSize"] == 64
    assert spec["actor"]["optim"]["lr"] == 1e-6
    assert spec["rollout"]["logProbMicroBatchSizePerGpu"] == 4
    assert not report.unknown


@pytest.mark.parametrize(
    "change", [lambda text: "\ufeff" + text, lambda text: text.replace("\n", "\r\n"), lambda t: t + "---\n"]
)
def test_bom_crlf_and_an_empty_document(change):
    assert run(change(YAML))[0] == run(YAML)[0]


@pytest.mark.parametrize(
    ("override", "made"),
    [
        ("data.seed=${oc.env:SEED}", 7),
        ("data.seed=${oc.env:NONE,3}", 3),
        ("data.seed=${oc.select:data.none,5}", 5),
        ("data.seed=${oc.select:data.train_batch_size}", 64),
        ("data.seed=${oc.select:a.b,${oc.select:c.d,9}}", 9),
        ("data.seed=${.train_batch_size}", 64),
        (f"data.seed=${{{ACTOR}.ppo_max_token_len_per_gpu}}", 16384),  # verl's default
        (f"data.seed=${{{ROLLOUT}.log_prob_max_token_len_per_gpu}}", 16384),  # whose default is the one above
        ("data.seed=1${data.train_batch_size}", 164),
        ("data.seed=${actor_rollout_ref.rollout.n}", 8),
    ],
)
def test_interpolations(override, made):
    assert run(YAML, override, env={"SEED": "7"})[0]["data"]["seed"] == made


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (
            "${data.nothing}",
            "neither the input nor verl's defaults set data.nothing; add data.nothing=... or write the value",
        ),
        ("${data.seed}", "refers to itself: data.seed -> data.seed; give it a value"),
        ("${oc.env:NONE}", "the environment has no NONE; set it, or write the value"),
        ("${now:%Y}", "the resolver now is not known here; write the value"),
        ("${data.x", "has no closing brace"),
    ],
)
def test_unresolvable_interpolation(value, says):
    found = faults(YAML.replace("  max_prompt_length: 1000", f"  max_prompt_length: 1000\n  seed: '{value}'"))
    assert len(found) == 1
    assert found[0].startswith(f"c.yaml, line 6: data.seed={value}: ")
    assert says in found[0]


def test_unresolvable_interpolation_of_a_key_that_is_not_carried_is_reported_only():
    _, report = run(YAML, "trainer.default_local_dir=${nothing}")
    assert any(item.setting.value == "${nothing}" for item in report.not_applicable)


def test_mandatory_mark_is_no_value():
    _, report = run(YAML + "trainer:\n  critic_warmup: ???\n")
    assert not report.changed


def test_overrides_win_over_files_whatever_their_order():
    sources = [Source.override("data.train_batch_size=128"), Source.file("c.yaml", YAML)]
    job, report = import_verl(sources)
    assert job["spec"]["data"]["trainBatchSize"] == 128
    assert job["spec"]["actor"]["ppoMiniBatchSize"] == 128  # ${data.train_batch_size}
    assert (
        "c.yaml, line 4: data.train_batch_size=64 is replaced by data.train_batch_size=128 (command line)"
        in report.notes
    )


def test_deletion_takes_a_key_and_its_section_away():
    spec, report = run(YAML, "~actor_rollout_ref.actor.optim", "~data.train_files=/data/train.parquet")
    assert "optim" not in spec["actor"]
    assert spec["data"]["train"]["files"][0].startswith("/REPLACE-ME/")
    assert any("optim.lr=1e-06 is taken away by ~actor_rollout_ref.actor.optim" in note for note in report.notes)


def test_dict_override_sets_leaves():
    spec, _ = run(YAML, f"{ACTOR}.optim={{lr: 2e-6, betas: [0.9, 0.95]}}")
    assert spec["actor"]["optim"]["lr"] == 2e-6
    assert spec["actor"]["optim"]["betas"] == [0.9, 0.95]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1", 1),
        ("-3", -3),
        ("1e-6", 1e-6),
        ("1_000", 1000),
        (".5", 0.5),
        ("True", True),
        ("null", None),
        ("NULL", None),
        ("", ""),
        ("8b", "8b"),
        ("1.2.3", "1.2.3"),
        ("'1'", "1"),
        ('"a, b"', "a, b"),
        ("'it\\'s'", "it's"),
        ("a b", "a b"),
        ("a\\,b", "a,b"),
        ("[]", []),
        ("[1,'a b',null,[2]]", [1, "a b", None, [2]]),
        ("[ 'x' , y ]", ["x", "y"]),
        ("{a: 1, 'b': [2], c: {d: e}}", {"a": 1, "b": [2], "c": {"d": "e"}}),
        ("${a.b}", "${a.b}"),
        ("${f:x,[1,2]}/y", "${f:x,[1,2]}/y"),
        ("[${a},${b:c,d}]", ["${a}", "${b:c,d}"]),
        ("inf", float("inf")),
        ("info", "info"),
        ("a=b", "a=b"),
        ("https://x/y?z=1", "https://x/y?z=1"),
    ],
)
def test_override_values(text, value):
    made = parse_value(text)
    assert (made, type(made)) == (value, type(value))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("1,2", "a sweep"),
        ("[1", "no closing"),
        ("'a", "no closing '"),
        ("{a}", "no ':'"),
        ("[1]x", "after its value"),
        ("[1 'a']", "needs|no closing|after"),
    ],
)
def test_override_values_that_are_none(text, says):
    if text == "[1 'a']":
        assert parse_value(text) == ["1 'a'"]
        return
    with pytest.raises(ValueError, match=says):
        parse_value(text)


@pytest.mark.parametrize(
    ("old", "new", "line", "says"),
    [
        ("train_batch_size: 64", "train_batch_size: many", 4, "data.train_batch_size=many: must be a whole number"),
        ("train_batch_size: 64", "train_batch_size: 1.5", 4, "data.train_batch_size=1.5: must be a whole number"),
        ("train_batch_size: 64", "train_batch_size: [1]", 4, "must be a whole number"),
        ("lr: 1e-6", "lr: fast", 12, "must be a number, such as 1e-6"),
        ("lr: 1e-6", "betas: 0.9", 12, "must be a list of numbers"),
        ("lr: 1e-6", "lr_scheduler_type: wsd", 12, "must be one of constant, cosine, linear"),
        ("n: 8", "n: 0", 13, "spec.rollout.n"),
        ("n: 8", "n: 8, temperature: 0", 13, "spec.rollout.temperature"),
        ("n: 8", "n: 8, enforce_eager: maybe", 13, "must be true or false"),
    ],
)
def test_values_of_the_wrong_kind(old, new, line, says):
    found = faults(YAML.replace(old, new))
    assert found[0].startswith(f"c.yaml, line {line}: ")
    assert says in found[0]


@pytest.mark.parametrize(("word", "value"), [("yes", True), ("off", False), ("'True'", True), ("FALSE", False)])
def test_words_that_verls_reader_takes_for_bools(word, value):
    assert run(YAML.replace("n: 8", f"n: 8, enforce_eager: {word}"))[0]["rollout"].get("enforceEager", False) is value


def test_numbers_in_quotes_are_numbers():
    assert run(YAML.replace("lr: 1e-6", "lr: '1e-6'"))[0]["actor"]["optim"]["lr"] == 1e-6


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a: 1\nb: 2\na: 3\n", "c.yaml, line 3: a: stands twice, first in line 1; remove one"),
        ("a: {b: 1, b: 2}", "c.yaml, line 1: a.b: stands twice"),
        ("a: [1\n", "c.yaml, line 2: YAML: "),
        ("", "c.yaml: YAML: holds nothing"),
        ("- a\n", "holds no mapping"),
        ("a: 1\n---\nb: 2\n", "holds 2 documents"),
        ("a: &x {b: *x}\n", "refers to itself"),
        ("apiVersion: grpo.dev/v1alpha1\nkind: GRPOJob\n", "line 2: kind=GRPOJob: is a GRPOJob already"),
        ("? [a]\n: 1\n", "has a key that is no word"),
        ("a: \t@x\n", "c.yaml, line 1"),
    ],
)
def test_yaml_faults(text, says):
    with pytest.raises(VerlImportError) as error:
        read_yaml("c.yaml", text)
    assert says in str(error.value)


def test_billion_values_are_refused():
    text = "a0: &a0 {x: 1, y: 2}\n" + "".join(f"a{i}: &a{i} {{x: *a{i - 1}, y: *a{i - 1}}}\n" for i in range(1, 40))
    with pytest.raises(VerlImportError, match="has more than 20000 values"):
        read_yaml("c.yaml", text)


def test_yaml_merge_keys():
    found = {item.key: item.value for item in read_yaml("c.yaml", "b: &b {x: 1, y: 2}\nc:\n  <<: *b\n  x: 3\n")}
    assert found == {"b.x": 1, "b.y": 2, "c.x": 3, "c.y": 2}


@pytest.mark.parametrize("text", ["plain", "=1", "a b=1", "~", "+x"])
def test_what_is_no_override(text):
    with pytest.raises(VerlImportError, match="write key=value"):
        import_verl([Source.override(text)])


def test_kind_of_a_file():
    assert Source.file("x.yml", "").kind == "yaml"
    assert Source.file("x", "#!/bin/bash\n").kind == "shell"
    assert Source.file("x", "python3 -m verl.trainer.main_ppo").kind == "shell"
    assert Source.file("x", "a: 1").kind == "yaml"


# The command


def call(*arguments, **more):
    return CliRunner().invoke(app, ["import", "verl", *map(str, arguments)], **more)


def test_command_writes_a_file_that_plan_takes(tmp_path):
    (tmp_path / "c.yaml").write_text(YAML)
    (tmp_path / "r.py").write_text(
        "def compute_score(data_source, solution_str, ground_truth, extra_info):\n    return 1\n"
    )
    out = tmp_path / "job.yaml"
    result = call(
        tmp_path / "c.yaml", "custom_reward_function.path=r.py", "trainer.nnodes=2", "-o", out, "--name", "mine"
    )
    assert result.exit_code == 0, result.output
    assert result.stdout == ""
    assert result.stderr.splitlines()[-1].startswith(f"GRPOJob mine -> {out}: ")
    assert "carried:" in result.stderr
    assert "            return 1\n" not in out.read_text().replace("    return 1", "")  # a literal block
    plan = CliRunner().invoke(app, ["plan", str(out), "-o", "json"])
    assert json.loads(plan.stdout)["responsesPerStep"] == 512
    assert "def compute_score" in out.read_text()


def test_command_writes_to_stdout_and_reads_stdin():
    result = call("-", "trainer.nnodes=2", input=YAML)
    assert result.exit_code == 0
    assert result.stdout.startswith("# Made by `grpoctl import verl` from standard input.\n")
    assert "standard input, line 4" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["nothing.yaml"], 2, "nothing.yaml is neither a file nor key=value"),
        (["--name", "x"], 2, "nothing to import"),
        (
            ["data.train_batch_size=x"],
            64,
            "no job was made: 1 fault\n  command line: data.train_batch_size=x: must be a whole",
        ),
    ],
)
def test_command_faults(arguments, code, says):
    result = call(*arguments)
    assert result.exception.exit_code == code
    assert says in str(result.exception)


def test_command_prints_the_keys():
    assert "| `data.train_batch_size` | `spec.data.trainBatchSize` | `1024` |" in call("--keys").stdout
