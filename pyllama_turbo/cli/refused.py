"""Flags of llama.cpp's tools that are not offered, each with the sentence that a user who types it reads.

click alone would read `-md FILE` as `-m d`: these names are looked for before it parses.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import click

HUB = "nothing is downloaded from model hubs: fetch the file with the hub's own client, or see `pyllama-turbo models`"
SERVER = "there is no HTTP server"
MEDIA = "only text can be given to a model"
PLACEMENT = "placement of threads is the system's: start the program under taskset, nice or numactl"
LOGS = "native log lines are shown by -v in front of the command, and nowhere else"
DRAFT = "drafting with another model or with n-grams is not offered"
CHAT = "a conversation is a command of its own: pyllama-turbo chat"
VECTORS = "control vectors are not offered"

# Sentence -> flags, separated by spaces.
TABLE = {
    HUB: "-hf -hfr --hf-repo -hff --hf-file -hft --hf-token -mu --model-url --offline -cl --cache-list -hfd -hfrd "
    "--hf-repo-draft --spec-draft-hf -mmu --mmproj-url -dr --docker-repo",
    SERVER: "--host --port --reuse-port --path --api-prefix --api-key --api-key-file --ssl-key-file --ssl-cert-file "
    "-to --timeout --threads-http --metrics --props --slots --no-slots --slot-save-path -sps "
    "--slot-prompt-similarity -a --alias --tags --webui --no-webui --ui --no-ui --models-dir --models-max "
    "--sleep-idle-seconds --cache-idle-slots --no-cache-idle-slots "
    "-ag -cb --cont-batching -nocb --no-cont-batching --rerank --reranking --cache-reuse -cram --cache-ram "
    "--server-base",
    MEDIA: "-mm --mmproj --mmproj-auto --no-mmproj --no-mmproj-auto --mmproj-offload --no-mmproj-offload --image "
    "--audio --video --image-min-tokens --image-max-tokens",
    PLACEMENT: "-C --cpu-mask -Cr --cpu-range --cpu-strict --prio --poll -Cb --cpu-mask-batch -Crb --cpu-range-batch "
    "--cpu-strict-batch --prio-batch --poll-batch --numa",
    LOGS: "--log-disable --log-file --log-colors --log-prefix --log-timestamps -lv --verbosity --log-verbosity "
    "--log-verbose --log-jsonl",
    DRAFT: "-md --model-draft --spec-draft-model --spec-type --spec-draft-n-max --spec-draft-n-min --spec-draft-p-min "
    "--draft-p-min --spec-draft-p-split --draft-p-split --draft --draft-n --draft-max --draft-min --draft-n-min -ngld "
    "--gpu-layers-draft --n-gpu-layers-draft --spec-draft-ngl -devd --device-draft -ctkd --cache-type-k-draft -ctvd "
    "--cache-type-v-draft -td --threads-draft -tbd --threads-batch-draft -lcs --lookup-cache-static -lcd "
    "--lookup-cache-dynamic --mtp --eagle3 --dflash --spec-default -Cd -Crd -Cbd -Crbd -cmoed -ncmoed -otd",
    CHAT: "-cnv --conversation -i --interactive -if --interactive-first",
    VECTORS: "--control-vector --control-vector-scaled --control-vector-layer-range",
    "metadata of a model cannot be overridden: change the file with gguf's own tools": "--override-kv",
    "the devices are those that CUDA_VISIBLE_DEVICES leaves": "-dev --device",
    "pyllama-turbo doctor lists the devices": "--list-devices",
    "pyllama-turbo estimate fits a context into memory before anything is loaded": "-fit --fit -fitt --fit-target "
    "-fitc --fit-ctx",
    "there is no warm-up run: the first tokens are timed as they are": "--warmup",
    "every chat template runs in the jinja engine": "--no-jinja",
    "reasoning is on or off, without a budget: --reasoning off": "--reasoning-budget --reasoning-budget-message "
    "--reasoning-effort",
    "name the samplers: --samplers 'top_k;top_p;temperature'": "--sampler-seq --sampling-seq",
    "self-extend is not offered: use --rope-scaling yarn, or a model trained for the length": "-gan --grp-attn-n -gaw "
    "--grp-attn-w",
    "the cache is never defragmented by hand": "-dt --defrag-thold",
    "attention is causal or as the model says": "--attention",
    "embeddings are computed in Python: model.context(embeddings=True).embed(texts)": "--embedding --embeddings "
    "--pooling --embd-normalize --embd-output-format --embd-separator",
    "the sampler runs on the CPU": "-bs --backend-sampling --no-backend-sampling",
    "text stands between turns as the chat template says": "--in-prefix --in-suffix --in-prefix-bos",
    "remote devices are not offered": "--rpc",
    "colours are for terminals; NO_COLOR=1 switches them off": "-co --color --no-color",
    "pyllama-turbo tokenize shows the tokens of a prompt": "--verbose-prompt",
    "a prompt is UTF-8 text: -p, -f or standard input": "-bf --binary-file --in-file",
    "checkpoints of a context are not offered": "-ctxcp --ctx-checkpoints --swa-checkpoints -cms --checkpoint-min-step",
    "the rates are printed on standard error; -q leaves them out": "--perf --show-timings -ptc --print-token-count",
    "type and read as in any terminal": "--simple-io",
    "completion is explained by pyllama-turbo --help": "--completion-bash",
    "a line that ends in \\ goes on in the next one": "-mli --multiline-input",
    "weights lie where the backend keeps them": "--no-host",
    "answers are shown as the model writes them; in Python, chat.parse takes reasoning and content apart": ""
    "--reasoning-format --reasoning-preserve --skip-chat-parsing --prefill-assistant --no-prefill-assistant",
    "write --no-repack": "-nr",
    "-v stands before the command: pyllama-turbo -v run ...": "-v --verbose",
    "pyllama-turbo --version tells it": "--version",
    "standard input is read where there is neither -p nor -f": "--stdin",
    "filling in is offered in Python: Llama(path)(prompt, suffix=...)": "--spm-infill",
    "redirect standard output": "-o --output --output-file --output-format -ofreq --output-frequency",
    "name the tensors: -ot 'blk\\.0\\.ffn_.*=CPU'": "-ncffn --n-cpu-ffn",
    "--load-mode says how a file is read": "-lzm --lazy-mode",
    "sequences are counted by -np": "-ns --sequences",
    "pyllama-turbo bench measures speed": "-npp -ntg -npl -pps -tgs",
    "pyllama-turbo kld and ppl measure quality": "--ppl --no-ppl --ppl-stride --kl-divergence --kl-divergence-base "
    "--save-all-logits --hellaswag --winogrande --multiple-choice --save-logits --logits-output-dir --chunks",
    "training is not offered": "-lr --learning-rate -wd --weight-decay -epochs --epochs -opt --optimizer -val-split "
    "--val-split",
}
# The same for whole families of flags, by how they begin.
FAMILIES = {
    "--spec-": DRAFT, "--video-": MEDIA, "--mtmd-": MEDIA, "--media-": MEDIA, "--tts-": MEDIA, "--cors-": SERVER,
    "--mcp-": SERVER, "--ui-": SERVER, "--webui-": SERVER, "--models-": SERVER, "--sse-": SERVER, "--tools": SERVER,
    "--agent": SERVER, "--log-": LOGS, "--no-log-": LOGS, "--diffusion-": "text diffusion is not offered",
}  # fmt: skip
REFUSED = {flag: sentence for sentence, flags in TABLE.items() for flag in flags.split()}


def sentence_for(name: str) -> str:
    """Why a flag is not offered; "" for one that llama.cpp does not have either."""
    family = next((FAMILIES[start] for start in FAMILIES if name.startswith(start)), "")
    return REFUSED.get(name, DRAFT if name.endswith("-draft") else family)


def _typed(command: click.Command, args: Sequence[str]) -> Iterator[str]:
    """The names among the arguments, without the values of known options."""
    values = {flag for p in command.params if isinstance(p, click.Option) and not p.is_flag for flag in p.opts}
    rest = iter(args)
    for arg in rest:
        if arg == "--":
            return
        if arg in values:
            next(rest, None)
        elif arg.startswith("-") and arg != "-":
            yield arg.partition("=")[0]


def check(command: click.Command, ctx: click.Context, args: Sequence[str]) -> None:
    """Refuse the first flag of llama.cpp's that the command does not have.

    Raises:
        click.UsageError: with the sentence of the table.
    """
    known = {flag for p in command.params for flag in (*p.opts, *p.secondary_opts)}
    for name in _typed(command, args):
        if name not in known and (sentence := sentence_for(name)):
            raise click.UsageError(f"{name} is not offered: {sentence}", ctx)
