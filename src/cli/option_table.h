/* The rows of the option table; options.h says what is made of them. Only data, only included by options.h. */
#ifndef DSE_CLI_OPTION_TABLE_H
#define DSE_CLI_OPTION_TABLE_H

/* X(id, long name, "aliases,separated", kind, value name, default, minimum, maximum, choices, verbs, help) */
#define V_RUN          (1u << DSE_VERB_RUN)
#define V_SERVE        (1u << DSE_VERB_SERVE)
#define V_SHOW         (1u << DSE_VERB_SHOW)
#define V_BENCH        (1u << DSE_VERB_BENCH)
#define V_EVAL         (1u << DSE_VERB_EVAL)
#define V_TOKENIZE     (1u << DSE_VERB_TOKENIZE)
#define V_TEMPLATE     (1u << DSE_VERB_TEMPLATE)
#define V_DEVICES      (1u << DSE_VERB_DEVICES)
#define V_VERSION      (1u << DSE_VERB_VERSION)
#define V_TOP          (1u << DSE_VERB_TOP)
#define V_CACHE        (1u << DSE_VERB_CACHE)
#define V_ADAPTERS     (1u << DSE_VERB_ADAPTERS)
#define V_ENGINE_VERBS (V_RUN | V_SERVE)
#define V_MODEL_VERBS  (V_RUN | V_SERVE | V_BENCH | V_EVAL)

#define DSE_OPTIONS(X)                                                                                                 \
    X(MODEL, "model", "-m", STRING, "PATH|NAME", NULL, 0, 0, NULL, V_MODEL_VERBS | V_SHOW,                             \
      "GGUF file, Hugging Face folder, or the name of a model in the Hugging Face cache")                              \
    X(DEVICE, "device", "-dev", STRING, "NAME", "auto", 0, 0, NULL, V_MODEL_VERBS,                                     \
      "auto or cpu; a device that is missing is an error, never a silent fallback")                                    \
    X(QUANTIZE, "quantize", "--quantization,-q", CHOICE, "TYPE", "auto", 0, 0,                                         \
      "auto none awq gptq q4_0 q4_k q8_0 int8 fp16", V_MODEL_VERBS,                                                    \
      "weight type wanted; auto takes the file as it is. This version does not convert weights")                       \
    X(THREADS, "threads", "-t", INT, "N", "0", 0, 1024, NULL, V_MODEL_VERBS,                                           \
      "threads that compute; 0: physical cores within affinity and container quota; more than 4 for each "             \
      "CPU allowed are refused")                                                                                       \
    X(COMPUTE, "compute", "", CHOICE, "HOW", "auto", 0, 0, "auto f32", V_MODEL_VERBS,                                  \
      "f32 computes everything in f32: reference numbers, slow")                                                       \
    X(NUMERICS, "numerics", "", CHOICE, "HOW", "exact", 0, 0, "exact fast", V_RUN | V_SERVE | V_EVAL,                  \
      "fast lets prompts attend in expanded form where that takes less work, in models with latent attention; "        \
      "results "                                                                                                       \
      "then depend on how a prompt is cut into steps")                                                                 \
    X(BENCH_NUMERICS, "numerics", "", CHOICE, "HOW", "exact", 0, 0, "exact fast both", V_BENCH,                        \
      "how prompts attend in models with latent attention; both: every test with exact and with fast")                 \
    X(PACK_CACHE, "pack-cache", "", STRING, "DIR|off", NULL, 0, 0, NULL, V_MODEL_VERBS,                                \
      "where weights in this CPU's layout are kept and mapped from, at most 5 models, those used last; off packs "     \
      "into memory at each start (default: $XDG_CACHE_HOME/deepseek-edge/packed)")                                     \
    X(MAX_MODEL_LEN, "max-model-len", "--ctx-size,-c", SIZE, "TOKENS", "0", 0, 1 << 30, NULL, V_ENGINE_VERBS,          \
      "context of a request, prompt and output; 0: the largest that fits, at most the model's")                        \
    X(KV_MEMORY, "kv-cache-memory", "", SIZE, "BYTES", "0", 0, INT64_MAX, NULL, V_ENGINE_VERBS,                        \
      "size of the KV pool; 0: planned from context and free memory")                                                  \
    X(KV_DTYPE, "kv-cache-dtype", "", CHOICE, "TYPE", "auto", 0, 0, "auto f16 q8_0 q4_0", V_MODEL_VERBS,               \
      "type of the KV cache; auto: f16, or f32 with --compute f32; q8_0 for models with latent attention and no "      \
      "indexer; q4_0 is refused")                                                                                      \
    X(PREFIX_CACHING, "enable-prefix-caching", "", FLAG, NULL, "on", 0, 0, NULL, V_ENGINE_VERBS,                       \
      "keep KV blocks of prompts and answers until their memory is needed; prompts that begin the same begin there")   \
    X(PREFIX_MEMORY, "prefix-cache-memory", "", SIZE, "BYTES", "0", 0, INT64_MAX, NULL, V_ENGINE_VERBS,                \
      "of the KV pool, how much may stay filled for no running request; 0: all of it")                                 \
    X(PREFIX_DISK, "prefix-cache-disk", "", STRING, "DIR", NULL, 0, 0, NULL, V_ENGINE_VERBS | V_CACHE,                 \
      "keep those blocks in files too, which outlast a restart; made for you alone, prompts can be read out of it")    \
    X(PREFIX_SPACE, "prefix-cache-space", "", SIZE, "BYTES", "4G", 1, INT64_MAX, NULL, V_ENGINE_VERBS,                 \
      "most that the files there may take; those used last stay")                                                      \
    X(SLOT_SAVE_PATH, "slot-save-path", "", STRING, "DIR", NULL, 0, 0, NULL, V_SERVE,                                  \
      "folder for POST /slots/{id}?action=save and restore; made for you alone, prompts can be read out of it")        \
    X(PRIORITY_POLICY, "priority-policy", "", CHOICE, "HOW", "request", 0, 0, "request token", V_SERVE,                \
      "request: a request of higher priority goes first until it is done; token: each so many tokens that a request "  \
      "has produced lower its priority by one (--priority-quantum)")                                                   \
    X(PRIORITY_QUANTUM, "priority-quantum", "", INT, "TOKENS", "64", 1, 1 << 20, NULL, V_SERVE,                        \
      "tokens that cost one level with --priority-policy token")                                                       \
    X(PRIORITY_AGEING, "priority-ageing", "", REAL, "SECONDS", "10", 0, 86400, NULL, V_SERVE,                          \
      "waiting that raises a priority by one, as far as the highest that is present; 0: never")                        \
    X(MEMORY_FRACTION, "memory-fraction", "--gpu-memory-utilization", REAL, "F", "0.9", 0.01, 1, NULL, V_ENGINE_VERBS, \
      "share of the available memory that the plan may use")                                                           \
    X(CHUNK, "chunk-tokens", "--max-num-batched-tokens,--ubatch-size,-ub", INT, "N", "512", 1, 8192, NULL,             \
      V_ENGINE_VERBS | V_BENCH | V_EVAL,                                                                               \
      "prompt tokens per forward pass; results do not depend on it (with --numerics fast they do)")                    \
    X(DRAFT_MAX, "draft-max", "--draft,--draft-n,--num-speculative-tokens", INT, "N", "8", 0, 16, NULL,                \
      V_ENGINE_VERBS,                                                                                                  \
      "tokens computed ahead when a text repeats itself, as long as that pays; no answer depends on it; 0: never")     \
    X(GPU_LAYERS, "gpu-layers", "-ngl,--n-gpu-layers", INT, "N", "0", 0, 1 << 20, NULL, V_MODEL_VERBS,                 \
      "layers on a GPU; this version has no GPU support and refuses any but 0")                                        \
    X(CHAT_TEMPLATE, "chat-template", "--chat-template-file", STRING, "FILE", NULL, 0, 0, NULL,                        \
      V_ENGINE_VERBS | V_TEMPLATE,                                                                                     \
      "Jinja chat template to use instead of the model's, or the name of a built-in one: deepseek_v2, deepseek_v3, "   \
      "deepseek_v31, deepseek_v32, deepseek_v4")                                                                       \
    X(LORA, "lora", "", LIST, "PATH[=SCALE]", NULL, 0, 0, NULL, V_ENGINE_VERBS,                                        \
      "LoRA adapter for every request that names none: a folder of PEFT, its .safetensors, or a GGUF adapter; may be " \
      "repeated, or several with commas between")                                                                      \
    X(LORA_SCALED, "lora-scaled", "", LIST, "PATH:SCALE", NULL, 0, 0, NULL, V_ENGINE_VERBS,                            \
      "the same with a scale in llama.cpp's spelling")                                                                 \
    X(LORA_MODULES, "lora-modules", "", LIST, "NAME=PATH", NULL, 0, 0, NULL, V_SERVE,                                  \
      "LoRA adapter that clients choose by `model`: NAME; may be repeated")                                            \
    X(LORA_DIR, "lora-dir", "", STRING, "DIR", NULL, 0, 0, NULL, V_SERVE,                                              \
      "clients may load adapters from this folder and unload adapters (/v1/load_lora_adapter)")                        \
    X(LORA_MEMORY, "lora-memory", "", SIZE, "BYTES", "256M", 0, INT64_MAX, NULL, V_SERVE,                              \
      "memory planned for adapters that are loaded later, with --lora-dir; more are refused")                          \
    X(MAX_LORA_RANK, "max-lora-rank", "", INT, "N", "0", 0, 4096, NULL, V_SERVE,                                       \
      "largest sum of the ranks of a request's adapters; 0: those given at start, at least 128 with --lora-dir")       \
    X(PROMPT, "prompt", "-p", STRING, "TEXT", NULL, 0, 0, NULL, V_RUN, "prompt; may also follow the model")            \
    X(FILE, "file", "-f", STRING, "FILE", NULL, 0, 0, NULL, V_RUN,                                                     \
      "read the prompt from a file, - for standard input")                                                             \
    X(SYSTEM, "system", "-s,-sys,--system-prompt", STRING, "TEXT", NULL, 0, 0, NULL, V_RUN, "system message")          \
    X(RAW, "raw", "-no-cnv,--no-conversation", FLAG, NULL, NULL, 0, 0, NULL, V_RUN,                                    \
      "complete the prompt as it is, without the chat template")                                                       \
    X(N_PREDICT, "max-tokens", "-n,--n-predict,--predict", INT, "N", "-1", -1, 1 << 30, NULL, V_RUN,                   \
      "longest answer in tokens; -1: to the end of the context")                                                       \
    X(TEMPERATURE, "temp", "--temperature", REAL, "F", "0.7", 0, 100, NULL, V_RUN,                                     \
      "0 always takes the likeliest token")                                                                            \
    X(TOP_P, "top-p", "", REAL, "F", "0.95", 0, 1, NULL, V_RUN, "smallest set of tokens with this much probability")   \
    X(TOP_K, "top-k", "", INT, "N", "0", 0, 1 << 20, NULL, V_RUN, "only the N likeliest tokens; 0: off")               \
    X(MIN_P, "min-p", "", REAL, "F", "0", 0, 1, NULL, V_RUN, "drop tokens below this share of the likeliest")          \
    X(REPEAT_PENALTY, "repeat-penalty", "--repetition-penalty", REAL, "F", "1", 0.01, 100, NULL, V_RUN,                \
      "above 1 makes tokens seen before less likely")                                                                  \
    X(SEED, "seed", "", INT, "N", NULL, INT64_MIN, INT64_MAX, NULL, V_RUN, "same seed, same answer; default: random")  \
    X(STOP, "stop", "-r,--reverse-prompt", LIST, "TEXT", NULL, 0, 0, NULL, V_RUN,                                      \
      "end the answer before this text; may be repeated")                                                              \
    X(GRAMMAR, "grammar-file", "", STRING, "FILE", NULL, 0, 0, NULL, V_RUN, "GBNF grammar the answer must follow")     \
    X(JSON_SCHEMA, "json-schema", "", STRING, "FILE", NULL, 0, 0, NULL, V_RUN, "JSON schema the answer must satisfy")  \
    X(THINK, "think", "", FLAG, NULL, NULL, 0, 0, NULL, V_RUN, "ask a thinking model to think, --no-think not to")     \
    X(HIDE_THINKING, "hide-thinking", "", FLAG, NULL, NULL, 0, 0, NULL, V_RUN, "do not print the thinking")            \
    X(STATS, "stats", "", FLAG, NULL, NULL, 0, 0, NULL, V_RUN, "print rates after each answer")                        \
    X(NO_HISTORY, "no-history", "", FLAG, NULL, NULL, 0, 0, NULL, V_RUN, "keep no file of what was typed")             \
    X(SERVED_NAME, "served-model-name", "--alias,-a", STRING, "A,B", NULL, 0, 0, NULL, V_SERVE,                        \
      "names that clients may use for the model")                                                                      \
    X(HOST, "host", "", STRING, "ADDRESS", "127.0.0.1", 0, 0, NULL, V_SERVE, "address to listen on")                   \
    X(PORT, "port", "", INT, "N", "8080", 0, 65535, NULL, V_SERVE, "port; 0 takes any free one and prints it")         \
    X(UDS, "uds", "", STRING, "PATH", NULL, 0, 0, NULL, V_SERVE, "listen on a Unix socket instead of a port")          \
    X(ANY_MODEL, "any-model", "", FLAG, NULL, "on", 0, 0, NULL, V_SERVE,                                               \
      "answer whatever model name a client sends; --no-any-model: 404 for unknown names, which is the default where "  \
      "clients can choose adapters (--lora-modules, --lora-dir)")                                                      \
    X(MAX_CONCURRENT, "max-concurrent", "--max-num-seqs,--parallel,-np", INT, "N", "8", 1, 1024, NULL, V_SERVE,        \
      "requests computed at once; they share one KV pool, N does not divide the context")                              \
    X(MAX_QUEUE, "max-queue", "", INT, "N", "64", 0, 65536, NULL, V_SERVE, "requests that may wait; more get 429")     \
    X(API_KEY, "api-key", "", LIST, "KEY", NULL, 0, 0, NULL, V_SERVE | V_TOP | V_ADAPTERS,                             \
      "key that clients must send; may be repeated. top and adapters send it")                                         \
    X(API_KEY_FILE, "api-key-file", "", STRING, "FILE", NULL, 0, 0, NULL, V_SERVE,                                     \
      "file with one key a line; behind a key and a blank, priority=N is what its requests have at most")              \
    X(INSECURE, "insecure", "", FLAG, NULL, NULL, 0, 0, NULL, V_SERVE, "listen beyond loopback without a key")         \
    X(CORS, "cors-origins", "", STRING, "LIST|*", NULL, 0, 0, NULL, V_SERVE,                                           \
      "origins that web pages may call from, in place of the default, which is any on this machine; * is all")         \
    X(UI, "ui", "", CHOICE, "WHEN", "auto", 0, 0, "auto on off", V_SERVE,                                              \
      "web page with chat and dashboard at /; auto: only when listening on loopback")                                  \
    X(MAX_BODY, "max-body", "", SIZE, "BYTES", "8M", 1024, 1 << 30, NULL, V_SERVE, "largest request body")             \
    X(REASONING_FORMAT, "reasoning-format", "", CHOICE, "HOW", "auto", 0, 0, "auto deepseek none", V_SERVE,            \
      "deepseek splits thinking into reasoning_content, none leaves it in the text")                                   \
    X(REASONING_BUDGET, "reasoning-budget", "", INT, "TOKENS", "-1", -1, 1 << 30, NULL, V_SERVE,                       \
      "thinking tokens of a request that names no budget; then its thought is ended. -1: any number")                  \
    X(PING_MS, "ping-interval-ms", "", INT, "MS", "10000", 10, 3600000, NULL, V_SERVE,                                 \
      "a comment is sent on a stream that was silent for so long")                                                     \
    X(DRAIN_TIMEOUT, "drain-timeout", "", INT, "SECONDS", "30", 0, 86400, NULL, V_SERVE,                               \
      "how long SIGTERM waits for running requests")                                                                   \
    X(WARMUP, "warmup", "", FLAG, NULL, "on", 0, 0, NULL, V_SERVE,                                                     \
      "touch the weights that every token uses before the first request")                                              \
    X(METRICS_COMPAT, "metrics-compat", "", CHOICE, "WHOSE", "none", 0, 0, "none vllm", V_SERVE,                       \
      "vllm: /metrics also has the names of vLLM, so that dashboards made for it work")                                \
    X(NODE_ID, "node-id", "", STRING, "ID", NULL, 0, 0, NULL, V_SERVE,                                                 \
      "edge_node_id of JSON log lines and /api/edge/state: up to 64 of A-Z a-z 0-9 . _ : - (default: a hash of the "   \
      "machine's id)")                                                                                                 \
    X(DEBUG_STEPS, "debug-steps", "", FLAG, NULL, "on", 0, 0, NULL, V_SERVE,                                           \
      "GET /debug/steps tells what the last steps of the engine spent their time on; --no-debug-steps: 404")           \
    X(TRACE_STEPS, "trace-steps", "", STRING, "FILE", NULL, 0, 0, NULL, V_SERVE,                                       \
      "write the engine's steps as a trace for Perfetto or chrome://tracing, at most 64 MiB")                          \
    X(LOG_LEVEL, "log-level", "", CHOICE, "LEVEL", "warn", 0, 0, "error warn info debug", V_MODEL_VERBS | V_SHOW,      \
      "how much is logged on standard error, info has a line for each request; prompts never are")                     \
    X(LOG_FORMAT, "log-format", "", CHOICE, "HOW", "text", 0, 0, "text json", V_MODEL_VERBS | V_SHOW,                  \
      "form of log lines; json makes every line on standard error a JSON object")                                      \
    X(BENCH_PROMPT, "n-prompt", "-p", INTS, "N,…", "512", 0, 1 << 20, NULL, V_BENCH,                                   \
      "prefill tests of so many tokens")                                                                               \
    X(BENCH_GEN, "n-gen", "-n", INTS, "N,…", "128", 0, 1 << 20, NULL, V_BENCH, "decode tests of so many tokens")       \
    X(BENCH_DEPTH, "n-depth", "-d,--depth", INTS, "N,…", "0", 0, 1 << 20, NULL, V_BENCH,                               \
      "tokens already in the context")                                                                                 \
    X(BENCH_SEQS, "n-seqs", "-b,--batch", INTS, "N,…", "1", 1, 1024, NULL, V_BENCH, "sequences at once")               \
    X(REPEAT, "repeat", "-r", INT, "N", "3", 1, 1000, NULL, V_BENCH, "runs of each test; the median counts")           \
    X(OUTPUT_FORMAT, "output-format", "-o", CHOICE, "FORM", "md", 0, 0, "md csv json jsonl", V_BENCH,                  \
      "form of results")                                                                                               \
    X(LOGITS, "logits", "", FLAG, NULL, NULL, 0, 0, NULL, V_EVAL, "write f32 logits of every position")                \
    X(MTP, "mtp", "", FLAG, NULL, NULL, 0, 0, NULL, V_EVAL,                                                            \
      "write mtp_logits too: those of the prediction layer, which a model must have, for the token after the next")    \
    X(IDS, "ids", "", STRING, "FILE", NULL, 0, 0, NULL, V_EVAL, "JSON list of token ids, - for standard input")        \
    X(OUTPUT, "output", "", STRING, "FILE", NULL, 0, 0, NULL, V_EVAL, "safetensors file to write")                     \
    X(TOKENIZER, "tokenizer", "", STRING, "PATH", NULL, 0, 0, NULL, V_TOKENIZE | V_TEMPLATE,                           \
      "folder, tokenizer.json, or GGUF (weights are not needed)")                                                      \
    X(DECODE, "decode", "", FLAG, NULL, NULL, 0, 0, NULL, V_TOKENIZE,                                                  \
      "ids to text: {\"ids\":[…]} in, {\"text\":…} out")                                                               \
    X(NO_SPECIAL, "no-special", "", FLAG, NULL, NULL, 0, 0, NULL, V_TOKENIZE,                                          \
      "texts of control tokens stay plain text")                                                                       \
    X(ADD_BOS, "add-bos", "", FLAG, NULL, NULL, 0, 0, NULL, V_TOKENIZE,                                                \
      "put the beginning-of-sequence token in front")                                                                  \
    X(JSON, "json", "", FLAG, NULL, NULL, 0, 0, NULL,                                                                  \
      V_SHOW | V_TOKENIZE | V_TEMPLATE | V_DEVICES | V_VERSION | V_TOP | V_ADAPTERS,                                   \
      "machine-readable output; tokenize and template read one JSON object a line")                                    \
    X(URL, "url", "", STRING, "URL", "http://127.0.0.1:8080", 0, 0, NULL, V_TOP | V_ADAPTERS,                          \
      "server to talk to: http://host:port or unix:/path")                                                             \
    X(INPLACE, "inplace", "", FLAG, NULL, NULL, 0, 0, NULL, V_ADAPTERS,                                                \
      "load: the name may be there already, and is replaced")                                                          \
    X(INTERVAL, "interval", "-d", REAL, "SECONDS", "1", 0.2, 3600, NULL, V_TOP, "time between two looks")              \
    X(ONCE, "once", "", FLAG, NULL, NULL, 0, 0, NULL, V_TOP, "look once and end")                                      \
    X(COLOR, "color", "", CHOICE, "WHEN", "auto", 0, 0, "auto always never", V_RUN | V_SERVE | V_TOP,                  \
      "colour on a terminal")

#endif
