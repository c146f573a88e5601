"""Shell scripts: what the command that starts verl is given. Bash itself is the judge where it is installed."""

import shutil
import subprocess

import pytest

from grpo_api.job import parse_job
from grpo_api.verl_import import Source, VerlImportError, import_verl
from grpo_api.verl_import.shell_arith import evaluate
from grpo_api.verl_import.shell_run import read_script

ACTOR, ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
ENV = {"HOME": "/home/me", "USER_BATCH": "96"}

SCRIPT = """\
#!/usr/bin/env bash
# A script with what such scripts hold.
set -xeuo pipefail
MODEL=${MODEL_PATH:-Qwen/Qwen3-8B}   # a default
NNODES=${NNODES:-3}
max_prompt_length=$((1024 * 2))
max_response_length=$((1024 * 6))
sp=4
EXTRA=()
if [ "${DEVICE:-gpu}" = gpu ] && [[ $sp -gt 1 ]]; then
    EXTRA+=(actor_rollout_ref.actor.ulysses_sequence_parallel_size=$sp)
elif [ "$DEVICE" == npu ]; then
    NNODES=7
fi
DATA=(
    data.train_files="['$HOME/data/gsm8k/train.parquet', '$HOME/data/math/train.parquet']"
    data.train_batch_size=96   # prompts
    data.max_prompt_length=${max_prompt_length}
    data.max_response_length=${max_response_length}
    data.truncation='left'
)
python3 -m verl.trainer.main_ppo \\
    algorithm.adv_estimator=grpo \\
    "${DATA[@]}" "${EXTRA[@]}" \\
    actor_rollout_ref.model.path="$MODEL" \\
    actor_rollout_ref.actor.ppo_mini_batch_size=96 \\
    actor_rollout_ref.actor.use_dynamic_bsz=True \\
    actor_rollout_ref.actor.ppo_max_token_len_per_gpu=$(( (max_prompt_length + max_response_length) * 2 )) \\
    actor_rollout_ref.actor.optim.lr=1e-6 \\
    actor_rollout_ref.rollout.n=4 \\
    actor_rollout_ref.rollout.max_num_seqs='${data.train_batch_size}' \\
    trainer.logger='["console","wandb"]' \\
    trainer.nnodes=${NNODES} \\
    trainer.experiment_name="qwen_$(date +%Y%m%d)" "$@" 2>&1 | tee train.log
echo "done: $MODEL"
"""


def words(text, env=ENV):
    """The settings as text, and the notes."""
    script = read_script("run.sh", text, env)
    return {item.key: item.value for item in script.settings}, script.notes


def launch(body, *arguments):
    return body + "\npython3 -m verl.trainer.main_ppo " + " ".join(arguments) + "\n"


def test_whole_script():
    job, report = import_verl([Source.file("run.sh", SCRIPT)], env=ENV)
    spec = parse_job(job).spec
    assert job["metadata"]["name"] == "qwen"
    assert spec.model.path == "Qwen/Qwen3-8B"
    assert spec.data.train.files == ["/home/me/data/gsm8k/train.parquet", "/home/me/data/math/train.parquet"]
    assert (spec.data.max_prompt_length, spec.data.max_response_length) == (2048, 6144)
    assert (spec.data.overlong_prompts, spec.trainer.nnodes) == ("TruncateLeft", 3)
    assert spec.actor.ppo_max_token_len_per_gpu == 16384
    assert spec.rollout.engine_args == {"max_num_seqs": 96}
    places = {item.setting.key: item.setting.place.line for item in report.carried}
    assert places["data.train_batch_size"] == 17  # of the array's element, not of the command
    assert places[f"{ROLLOUT}.n"] == 31 - 1
    assert not report.unknown
    assert not report.changed


@pytest.mark.parametrize("change", [str, lambda text: "\ufeff" + text, lambda text: text.replace("\n", "\r\n")])
def test_bom_and_crlf(change):
    job, _ = import_verl([Source.file("run.sh", change(SCRIPT))], env=ENV)
    assert job == import_verl([Source.file("run.sh", SCRIPT)], env=ENV)[0]


SNIPPETS = {
    "quotes": ("", "a='x y'", 'b="x y"', "c=x\\ y", "'d=$HOME'", '"e=\\$HOME \\"q\\""', "f=''", "g=a'b'\"c\""),
    "defaults": (
        "X=1\nE=",
        "a=${X:-3}",
        "b=${Y:-3}",
        "c=${E:-4}",
        "d=${E-4}",
        "e=${X:+set}",
        "f=${Y:-${X:-2}}",
        "g=${E}",
    ),
    "default with quotes": ("", "\"a=${Y:-'q'}\"", "b=${Y:-'p q'}", 'c="${Y:-"r s"}"', "d=${Y:-\"['t','u']\"}"),
    "assigned default": (': "${Z:=5}"', "a=$Z"),
    "arithmetic": (
        "n=5\nm=3",
        "a=$((n * (m + 1)))",
        "b=$(( 7 / 2 ))",
        "c=$((-7 / 2))",
        "d=$((-7 % 3))",
        "e=$((n > m && 1))",
    ),
    "arithmetic names": ("n=5", "a=$((n+$n+${n}))", "b=$((0x10 + 1))", "c=$(( (1024 * 20) ))", "d=$((1<<4 | 1))"),
    "split": ("X='a=1 b=2'\nO='c=3'", "$X", '"$O d"'),
    "arrays": (
        "A=(a=1 'b=x y' # why\n  c=$HOME)\nA+=(d=4)\nB=()",
        '"${A[@]}"',
        '"${B[@]}"',
        '"n=${#A[@]}"',
        '"e=${A[0]}"',
        '"all=${A[*]}"',
    ),
    "array edits": ("A=(x.a=1 x.b=2)", '"${A[@]//x./y.}"', '"${A[@]:1}"'),
    "edits": (
        "M=Org/Qwen3-8B",
        "a=${M##*/}",
        "b=${M%%/*}",
        "c=${M,,}",
        "d=${M^^}",
        "e=${M/Qwen/q}",
        "f=${M:4:5}",
        "g=${#M}",
        "h=${M#*/}",
    ),
    "append": ("S=a\nS+=b\nexport T=${S}c U=1", "x=$S$T$U"),
    "arguments": ("", '"$@"', "a=$#", "b=${1:-none}", "$@"),
    "if": (
        "A=2\nif [ $A -ge 2 ]; then B=yes; else B=no; fi\n"
        "if [[ $A == 3 || -z $B ]]; then C=1; elif ! false; then C=2; fi",
        "b=$B",
        "c=$C",
    ),
    "test operators": (
        'A=x\n[ -n "$A" ] && B=1\n[ "$A" = y ] || C=2\n[ "$A" != y -a 1 -lt 2 ] && D=3',
        "b=$B",
        "c=$C",
        "d=$D",
    ),
    "pattern": (
        'A=qwen3\nif [[ $A == qwen* ]]; then B=1; fi\nif [[ $A == "qwen*" ]]; then C=1; else C=2; fi',
        "b=$B",
        "c=$C",
    ),
    "case": ('A=gpu\ncase "$A" in\n  cpu|npu) B=1 ;;\n  g*) B=2\n     C=3;;\n  *) B=4;;\nesac', "b=$B", "c=$C"),
    "for": ("A=()\nfor i in 1 2 3; do A+=(k$i=$((i * i))); done", '"${A[@]}"'),
    "function": ('f() { local q=$2; R="$1-$q"; }\nf a b\nfunction g { S=$#; }\ng 1 2 3', "r=$R", "s=$S"),
    "groups": ("{ A=1; B=2; }\nif ((A < B)); then C=yes; fi\n(( A > B )) || D=less", "c=$C", "d=$D"),
    "heredoc": ("cat <<EOF\nA=1 'unclosed\nEOF\nB=2", "b=$B"),
    "continued": ("A=a\\\nb", "x=$A \\\n  y=1 \\\n  # z=2"),
    "echo": ("", "a=$(echo x y)", 'b="$(echo "$HOME")"', "c=`echo z`"),
    "interpolation": ("", "'a=${data.x}'", '"b=\\${data.x}"'),
    "set -u and unset": ("X=\nunset Y", 'a="${X}"'),
    "dollar": ("", "a=1$", "b=$HOME/x", "c=\"['$HOME/x']\"", "d=a$'\\t'b"),
}


@pytest.mark.skipif(not shutil.which("bash"), reason="no bash")
@pytest.mark.parametrize("name", SNIPPETS)
def test_as_bash_does(name):
    body, *arguments = SNIPPETS[name]
    text = launch(body, *arguments)
    function = "python3() { shift 2; [ $# -eq 0 ] || printf '%s\\0' \"$@\"; }\ncat() { :; }\n"
    made = subprocess.run(["bash", "-c", function + text], env=ENV, capture_output=True, check=True).stdout
    bash = [word.decode() for word in made.split(b"\0")[:-1]]
    assert given_words(text) == bash


def given_words(text):
    from grpo_api.verl_import.shell_parse import Parser
    from grpo_api.verl_import.shell_run import _Runner

    runner = _Runner("run.sh", ENV)
    runner.run(Parser("run.sh", text).script())
    return [word.text for word, _ in runner.launches[0].words]


@pytest.mark.parametrize(
    ("command", "found"),
    [
        ("python3 -m verl.trainer.main_ppo a.b=1", {"a.b": 1}),
        ("PYTHONUNBUFFERED=1 python3 -u -m verl.trainer.main_ppo a.b=1 &", {"a.b": 1}),
        ("python -m recipe.dapo.main_dapo a.b=1", {"a.b": 1}),
        ("python3 verl/trainer/main_ppo.py a.b=1", {"a.b": 1}),
        ('L=(uv run python3)\n"${L[@]}" -m verl.trainer.main_ppo a.b=1', {"a.b": 1}),
        ("ray job submit --working-dir . -- python3 -m verl.trainer.main_ppo a.b=1", {"a.b": 1}),
        ('run() { python3 -m verl.trainer.main_ppo a.b=1 "$@"; }\nrun c.d=2', {"a.b": 1, "c.d": 2}),
        ("( cd x && python3 -m verl.trainer.main_ppo a.b=1 ) > log", {"a.b": 1}),
        ("if python3 -m verl.trainer.main_ppo a.b=1; then echo ok; fi", {"a.b": 1}),
        ("nohup python3 -m verl.trainer.main_ppo a.b=1 >> log 2>&1 < /dev/null &", {"a.b": 1}),
        (
            "python3 -m verl.trainer.main_ppo +a.b=1 ++c.d=x ~e.f g.h=[1,2]",
            {"a.b": 1, "c.d": "x", "e.f": None, "g.h": [1, 2]},
        ),
    ],
)
def test_commands_that_start_verl(command, found):
    assert words(command)[0] == found


def test_last_of_two_equal_keys_wins_and_the_first_is_noted():
    text = launch("", "data.train_batch_size=8", "trainer.nnodes=1", "data.train_batch_size=16")
    _, report = import_verl([Source.file("run.sh", text), *overrides("actor_rollout_ref.actor.ppo_mini_batch_size=16")])
    assert (
        "run.sh, line 2: data.train_batch_size=8 is replaced by data.train_batch_size=16 (run.sh, line 2)"
        in report.notes
    )


def overrides(*texts):
    return [Source.override(text) for text in (f"{ROLLOUT}.n=8", "algorithm.adv_estimator=grpo", *texts)]


def test_comment_within_a_command_ends_it_as_in_bash():
    text = "python3 -m verl.trainer.main_ppo \\\n  a.b=1 \\  # why\n  c.d=2 \\\n  e.f=3\n"
    found, notes = words(text)
    assert found == {"a.b": 1}
    assert notes[-1].startswith("run.sh, line 3: c.d=2 and 1 words after it stand outside the command")


def test_what_is_not_run_is_noted():
    body = "D=${D:-$(probe && echo npu || echo gpu)}\nif nvidia-smi; then G=1; else G=2; fi\nsource env.sh\n"
    body += "while true; do X=1; done"
    found, notes = words(launch(body, "a.d=$D", "a.g=$G"))
    assert found == {"a.d": "gpu", "a.g": 2}
    assert notes == [
        "run.sh, line 1: $(probe && echo npu || echo gpu) is not run; taken as gpu",
        "run.sh, line 2: this test cannot be decided without running the script; taken as false",
        "run.sh, line 3: `source env.sh` is not run; what it sets is not known",
        "run.sh, line 4: this loop is not run",
    ]


def test_two_launches():
    found, notes = words(launch("", "a.b=1") + launch("", "a.b=2"))
    assert found == {"a.b": 1}
    assert notes == ["run.sh, line 4: a second command starts verl; only the one in line 2 is read"]


def test_number_from_an_unset_variable_is_a_fault():
    text = launch("", "trainer.nnodes=$NODES", "trainer.project_name=$P", "trainer.default_local_dir=$Q/x")
    with pytest.raises(VerlImportError) as error:
        import_verl([Source.file("run.sh", text)], env={})
    assert [str(fault) for fault in error.value.faults] == [
        "run.sh, line 2: trainer.nnodes=: $NODES is not set; set it in the environment (NODES=... grpoctl import verl "
        "...), or add trainer.nnodes=... after the script"
    ]
    job, _ = import_verl([Source.file("run.sh", text), *overrides("data.train_batch_size=256")], env={"NODES": "2"})
    assert job["spec"]["trainer"]["nnodes"] == 2
    import_verl([Source.file("run.sh", text), *overrides("data.train_batch_size=256", "trainer.nnodes=1")], env={})


def test_number_from_a_command_is_a_fault():
    with pytest.raises(VerlImportError, match=r"\$\(nvidia-smi -L \| wc -l\) is not run; add trainer.n_gpus_per_node="):
        import_verl([Source.file("run.sh", launch("", "trainer.n_gpus_per_node=$(nvidia-smi -L | wc -l)"))])


def test_path_from_an_unset_variable_is_a_placeholder():
    text = launch("", "data.train_files=$ROOT/train.parquet", "model.path=${M:?set M}", "data.train_batch_size=256")
    job, report = import_verl([Source.file("run.sh", text), *overrides()], env={})
    assert job["spec"]["data"]["train"]["files"] == ["/REPLACE-ME/train.parquet"]
    assert job["spec"]["model"]["path"] == "/REPLACE-ME"
    assert ("spec.model.path", "model.path= (run.sh, line 2): $M is not set (set M)") in report.placeholders


def test_unquoted_interpolation_is_explained():
    with pytest.raises(VerlImportError, match="put verl's interpolations in single quotes"):
        import_verl([Source.file("run.sh", launch("", "trainer.nnodes=${data.nodes}"))])


def test_config_name_of_a_file():
    text = launch("D=conf", '--config-path="$D"', "--config-name='mine'", "trainer.nnodes=2")
    yaml = "data: {train_batch_size: 16}\nactor_rollout_ref: {actor: {ppo_mini_batch_size: 16}}\ntrainer: {nnodes: 1}"
    job, report = import_verl([Source.file("run.sh", text), *overrides()], read={"conf/mine.yaml": yaml}.get)
    assert (job["spec"]["data"]["trainBatchSize"], job["spec"]["trainer"]["nnodes"]) == (16, 2)
    _, report = import_verl([Source.file("run.sh", text), *overrides("data.train_batch_size=256")])
    assert (
        "run.sh: the configuration conf/mine.yaml cannot be read here; give its file as an argument, too"
        in report.notes
    )


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("echo hi\n", "no command of the script starts verl"),
        ('a="x\npython3 -m verl.trainer.main_ppo', r'run.sh, line 1: ": this quote is never closed'),
        ("A=(\na=1\n", "run.sh, line 1: A=\\(: has no closing parenthesis"),
        ("a=${X\n", "line 1: \\$\\{X\n: has no closing brace"),
        ("if true; then\n  A=1\n", "stands where 'fi' must"),
        ("A=1\nexit 1\n" + launch("", "a=1"), "line 2: run.sh: the script ends here"),
        (launch("", "'data.x=[1'"), r"run.sh, line 2: data.x=\[1: has no closing '\]'"),
        (launch("", "data.x=1,2"), "a sweep; give one, or put a list in"),
        ("f() { f; }\nf\n", "does too much"),
        ("fi\n", "line 1: 'fi': stands where no command begins"),
    ],
)
def test_faults_name_file_line_and_repair(text, says):
    with pytest.raises(VerlImportError, match=says):
        import_verl([Source.file("run.sh", text)])


@pytest.mark.parametrize("text", ["1 +", "a = 2", "x++", "2 ** 400", "()", "a ? 1 : 2", "1 / 0", "9" * 2000])
def test_arithmetic_that_is_not_computed(text):
    with pytest.raises(ValueError, match=r"\$\(\("):
        evaluate(text, lambda _: 0)
