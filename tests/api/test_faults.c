/* An allocation that fails, each in turn, while a request is answered: the answer is whole, or it is told as an
 * error. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <arpa/inet.h>
#include <ctype.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/buffer.h"
#include "base/counters.h"
#include "server/http_internal.h"
#include "server/server_internal.h"

#define MAX_ANSWER   (512 * 1024)
#define CHUNK_TOKENS 32 /* of a prompt, per step */
/* So many faults in a row that nothing was lost to: the request makes fewer allocations than that. */
#define HARMLESS_AT_THE_END 60

#define TEMPLATE                                                                                                       \
    "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}{% if add_generation_prompt %}a:{% endif %}"

static struct {
    struct dse_model *model;
    struct dse_engine *engine;
    struct dse_server *server;
} fixture;

/* How a dialect tells of an error, ends a stream, and says that the limit of tokens was reached. varies: the prompt is
 * another one each time, and so is what the model writes. */
struct shape {
    const char *told[2], *ends[2], *finished;
    bool varies;
};
static const struct shape openai = {{"{\"error\":{\"message\":"}, {"data: [DONE]\n\n"}, "\"finish_reason\":\"length\""};
/* Without memory for the path nobody knows the dialect. */
static const struct shape messages = {{"\"type\":\"error\"", "{\"error\":{\"message\":"},
                                      {"event: message_stop\n", "event: error\n"},
                                      "\"stop_reason\":\"max_tokens\""};
static const struct shape responses = {{"{\"error\":{\"message\":", "\"error\":{\"code\":\"server_error\""},
                                       {"event: response.incomplete\n", "event: response.failed\n"},
                                       "\"status\":\"incomplete\""};
static const struct shape slots = {{"{\"error\":{\"message\":"}, {NULL}, "\"id_slot\":"};
static const struct shape embeddings = {{"{\"error\":{\"message\":"}, {NULL}, "\"embedding\":["};
static const struct shape infill = {
    {"{\"error\":{\"message\":"}, {"\"stop\":true", "data: {\"error\""}, "\"stop_type\":\"limit\""};
/* Constrained answers end by themselves. */
static const struct shape stopped = {{"{\"error\":{\"message\":"}, {"data: [DONE]\n\n"}, "\"finish_reason\":\"stop\""};
static const struct shape calls = {
    {"{\"error\":{\"message\":"}, {"data: [DONE]\n\n"}, "\"finish_reason\":\"tool_calls\"", true};
static const struct shape tool_use = {{"\"type\":\"error\"", "{\"error\":{\"message\":"},
                                      {"event: message_stop\n", "event: error\n"},
                                      "\"stop_reason\":\"tool_use\"",
                                      true};
static const struct shape plain = {{"\"error\":{\"message\":", "\"type\":\"error\""}, {NULL}, ""};
static const struct shape done = {{"{\"error\":{\"message\":"}, {NULL}, "successfully"};
static const struct shape scales = {{"{\"error\":{\"message\":"}, {NULL}, "success"};
/* Without memory even for that. */
#define LAST_RESORT "\"message\":\"out of memory\""

static bool has(const char *text, const char *const any[2])
{
    return (any[0] && strstr(text, any[0])) || (any[1] && strstr(text, any[1])) || strstr(text, LAST_RESORT);
}

/* slot_folder: NULL, or where slots are saved. */
static void open_server(const char *slot_folder)
{
    char path[1024];
    struct dse_error err = {0};
    struct dse_model_options model = {.n_threads = 1};
    char adapters[1024];
    struct dse_engine_options engine = {.max_concurrent = 4,
                                        .chunk_tokens = CHUNK_TOKENS,
                                        .prefix_caching = slot_folder != NULL,
                                        .adapter_rank = 8,
                                        .adapter_bytes = 1 << 20};
    struct dse_server_options server = dse_server_options_default;
    server.port = 0;
    server.slot_save_path = slot_folder;
    server.chat_template = TEMPLATE;
    snprintf(adapters, sizeof adapters, "%s/adapters/llama_linear", getenv("DSE_TEST_DATA"));
    server.lora_dir = adapters;
    snprintf(path, sizeof path, "%s/reference/gguf/llama_linear.gguf", getenv("DSE_TEST_DATA"));
    if (dse_model_open(path, &model, &fixture.model, &err) != DSE_OK ||
        dse_engine_create(fixture.model, &engine, &fixture.engine, &err) != DSE_OK ||
        dse_server_start(&server, &fixture.server, &err) != DSE_OK ||
        dse_server_set_engine(fixture.server, fixture.engine, &err) != DSE_OK)
        fail_msg("%s", err.message);
    /* The model has no tokens for holes; any will do. */
    atomic_load(&fixture.server->served)->fim = (struct dse_fim_tokens){1, 2, 3};
}

static int open_fixture(void **state)
{
    open_server(NULL);
    return 0;
}

static int close_fixture(void **state)
{
    dse_server_stop(fixture.server);
    dse_engine_free(fixture.engine);
    dse_model_unref(fixture.model);
    return 0;
}

/* What the server still does for the connection before, or not yet for the one just made, would count for the next
 * request. */
static void wait_for_connections(int n)
{
    struct dse_http *http = fixture.server->http;
    for (bool settled = false; !settled; usleep(50)) {
        pthread_mutex_lock(&http->lock);
        settled = http->n_connections == n && !http->exchanges;
        pthread_mutex_unlock(&http->lock);
    }
}

/* The body of the answer to a request whose n-th allocation fails, 0: none does. HTTP/1.0, so that it comes in one piece.
 * Without a body it is a GET. NUMBER in the body becomes another one each time: what is cached by its text is made anew. */
#define NUMBER "#####"
static void ask(const struct shape *shape, const char *path, const char *body, long n, char answer[MAX_ANSWER])
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)dse_server_port(fixture.server))};
    static char request[16384];
    static unsigned n_asked;
    size_t got = 0;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    wait_for_connections(0);
    assert_int_equal(connect(fd, (struct sockaddr *)&address, sizeof address), 0);
    wait_for_connections(1);
    int length = body ? snprintf(request, sizeof request,
                                 "POST %s HTTP/1.0\r\nHost: localhost\r\nContent-Length: %zu\r\n\r\n%s", path,
                                 strlen(body), body)
                      : snprintf(request, sizeof request, "GET %s HTTP/1.0\r\nHost: localhost\r\n\r\n", path);
    assert_true((size_t)length < sizeof request);
    for (char *at = request; (at = strstr(at, NUMBER)) != NULL;) {
        char digits[sizeof NUMBER];
        snprintf(digits, sizeof digits, "%05u", n_asked % 100000);
        memcpy(at, digits, sizeof NUMBER - 1);
    }
    n_asked++;
    dse_alloc_fail_after(n);
    assert_int_equal(send(fd, request, (size_t)length, MSG_NOSIGNAL), length);
    for (ssize_t part = 1; part > 0 && got + 1 < MAX_ANSWER; got += part > 0 ? (size_t)part : 0) {
        struct pollfd p = {.fd = fd, .events = POLLIN};
        if (poll(&p, 1, 60000) <= 0) fail_msg("no answer when allocation %ld fails", n);
        part = recv(fd, answer + got, MAX_ANSWER - 1 - got, 0);
    }
    close(fd);
    while (dse_server_in_flight(fixture.server) > 0)
        usleep(100);
    dse_alloc_fail_after(0);
    answer[got] = '\0';
    const char *end = strstr(answer, "\r\n\r\n");
    if (strstr(answer, "Content-Type: text/event-stream") && !has(answer, shape->ends))
        fail_msg("a stream has begun and is cut when allocation %ld fails:\n%s", n, answer);
    if (end && end[4] == '\0' && strstr(answer, " 503 ")) /* no memory even for the text of the error */
        memcpy(answer, LAST_RESORT, sizeof LAST_RESORT);
    else if (end)
        memmove(answer, end + 4, strlen(end + 4) + 1);
}

/* What differs from answer to answer is made alike: numbers (times) and the random parts of ids. */
static void make_comparable(char *text)
{
    char *out = text;
    for (char *p = text; *p;) {
        size_t hex = strspn(p, "0123456789abcdef");
        if (hex == 24) {
            p += hex;
        } else if (isdigit((unsigned char)*p)) {
            p += strspn(p, "0123456789.e+-");
            *out++ = '#';
        } else {
            *out++ = *p++;
        }
    }
    *out = '\0';
}

/* least: so many faults at least are told. */
static void every_allocation_fails(const struct shape *shape, const char *path, const char *body, long least)
{
    static char whole[MAX_ANSWER], answer[MAX_ANSWER];
    const bool stream = body && strstr(body, "\"stream\":true") != NULL;
    long n_told = 0;
    ask(shape, path, body, 0, whole);
    make_comparable(whole);
    assert_non_null(strstr(whole, shape->finished));
    for (long n = 1, harmless = 0; harmless < HARMLESS_AT_THE_END; n++) {
        ask(shape, path, body, n, answer);
        bool told = has(answer, shape->told);
        bool cut = stream ? !has(answer, shape->ends) : strlen(answer) == 0;
        harmless = told || cut ? 0 : harmless + 1;
        n_told += told;
        if (strstr(answer, "shutting down")) fail_msg("%s: allocation %ld fails and the server is draining", path, n);
        make_comparable(answer);
        bool finished = strstr(answer, shape->finished) != NULL;
        if (!told && !cut && !(shape->varies ? finished : strcmp(answer, whole) == 0)) {
            size_t at = 0;
            while (answer[at] && answer[at] == whole[at])
                at++;
            at = at > 500 ? at - 500 : 0;
            fail_msg("%s: allocation %ld fails and nobody is told:\n%.1000s\nis not\n%.1000s", path, n, answer + at,
                     whole + at);
        }
        if (told && stream && (strncmp(answer, "data:", 5) == 0 || strncmp(answer, "event:", 6) == 0) &&
            !has(answer, shape->ends))
            fail_msg("%s: an error is not the end of the stream when allocation %ld fails:\n%s", path, n, answer);
    }
    if (n_told < least) fail_msg("%s: %ld faults told, not %ld", path, n_told, least);
}

static void every_allocation_fails_once(const struct shape *shape, const char *path, const char *body)
{
    every_allocation_fails(shape, path, body, shape == &plain ? 1 : 11);
}

#define LIMITS "\"max_tokens\":6,\"ignore_eos\":true,\"temperature\":0,\"n\":2"
#define STREAM ",\"stream\":true,\"return_progress\":true"
#define USAGE  ",\"stream_options\":{\"include_usage\":true}"

static void chat_answers_are_whole_or_told_as_errors(void **state)
{
#define CHAT "{\"messages\":[{\"role\":\"user\",\"content\":\"hello\"}],\"logprobs\":true,\"top_logprobs\":2," LIMITS
    every_allocation_fails_once(&openai, "/v1/chat/completions", CHAT "}");
    every_allocation_fails_once(&openai, "/v1/chat/completions", CHAT STREAM "}");
    every_allocation_fails_once(&openai, "/v1/chat/completions", CHAT STREAM USAGE "}");
}

static void completions_are_whole_or_told_as_errors(void **state)
{
#define COMPLETION "{\"prompt\":\"hello\",\"echo\":true,\"logprobs\":1,\"stop\":[\"never said\"]," LIMITS
    every_allocation_fails_once(&openai, "/v1/completions", COMPLETION "}");
    every_allocation_fails_once(&openai, "/v1/completions", COMPLETION STREAM USAGE "}");
}

static void other_dialects_are_whole_or_told_as_errors(void **state)
{
#define SHORT "\"ignore_eos\":true,\"temperature\":0"
#define MESSAGE                                                                                                        \
    "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"hello\"}]},"                         \
    "{\"role\":\"assistant\",\"content\":[{\"type\":\"thinking\",\"thinking\":\"t\"},{\"type\":\"thinking\","          \
    "\"thinking\":\"u\"},{\"type\":\"tool_use\",\"id\":\"a\",\"name\":\"f\",\"input\":{}}]},{\"role\":\"user\","       \
    "\"content\":[{\"type\":\"tool_result\",\"tool_use_id\":\"a\",\"content\":\"c\",\"is_error\":true}]}],"            \
    "\"tools\":[{\"name\":\"f\",\"description\":\"d\",\"input_schema\":{},\"strict\":false}],\"system\":\"s\","        \
    "\"stop_sequences\":[\"never said\"],\"max_tokens\":6," SHORT
#define ITEMS                                                                                                          \
    "{\"input\":[{\"role\":\"user\",\"content\":\"hello\"},{\"type\":\"reasoning\",\"summary\":[{\"text\":\"t\"}]},"   \
    "{\"type\":\"function_call\",\"call_id\":\"a\",\"name\":\"f\",\"arguments\":\"{}\"},"                              \
    "{\"type\":\"function_call_output\",\"call_id\":\"a\",\"output\":\"c\"}],\"instructions\":\"s\","                  \
    "\"tools\":[{\"type\":\"function\",\"name\":\"f\",\"description\":\"d\",\"parameters\":{}}],"                      \
    "\"metadata\":{\"a\":\"b\"},\"text\":{\"format\":{\"type\":\"text\"}},\"max_output_tokens\":6," SHORT
#define HOLE                                                                                                           \
    "{\"input_prefix\":\"a\",\"input_suffix\":\"b\",\"input_extra\":[{\"filename\":\"n\",\"text\":\"t\"}],"            \
    "\"n_predict\":6," SHORT
    every_allocation_fails_once(&messages, "/v1/messages", MESSAGE "}");
    every_allocation_fails_once(&messages, "/v1/messages", MESSAGE STREAM "}");
    every_allocation_fails_once(&responses, "/v1/responses", ITEMS "}");
    every_allocation_fails_once(&responses, "/v1/responses", ITEMS STREAM "}");
    every_allocation_fails_once(&embeddings, "/v1/embeddings", "{\"input\":[\"hello\",[5,6]]}");
    every_allocation_fails_once(&infill, "/infill", HOLE "}");
    every_allocation_fails_once(&infill, "/infill", HOLE STREAM "}");
}

static char slot_folder[] = "/tmp/dse-fault-slots-XXXXXX";

static int open_saving(void **state)
{
    close_fixture(state);
    if (mkdtemp(slot_folder) == NULL) return -1;
    open_server(slot_folder);
    return 0;
}

static int close_saving(void **state)
{
    char command[64];
    close_fixture(state);
    snprintf(command, sizeof command, "rm -rf %s", slot_folder);
    if (system(command) != 0) return -1;
    return open_fixture(state);
}

static void actions_on_slots_are_done_or_told_as_errors(void **state)
{
    static char answer[MAX_ANSWER];
#define FILLING                                                                                                        \
    "{\"id_slot\":1," SHORT ",\"prompt\":\"a b c d e f g h i j k l m n o p q r s t u v w x y z\",\"max_tokens\":30}"
    every_allocation_fails_once(&openai, "/v1/completions", FILLING);
    ask(&openai, "/v1/completions", FILLING, 0, answer);
    every_allocation_fails(&slots, "/slots/1?action=save", "{\"filename\":\"x\"}", 5);
    every_allocation_fails(&slots, "/slots/2?action=restore", "{\"filename\":\"x\"}", 5);
    ask(&slots, "/slots/2?action=erase", "", 0, answer);
    ask(&slots, "/slots/2?action=restore", "{\"filename\":\"x\"}", 0, answer);
    assert_non_null(strstr(answer, "\"n_restored\":"));
    every_allocation_fails(&responses, "/v1/responses",
                           "{\"include\":[\"message.output_text.logprobs\"],\"top_logprobs\":2,"
                           "\"input\":\"hello\",\"max_output_tokens\":6," SHORT STREAM "}",
                           11);
}

/* The answers end by their grammars: each has one sentence, or one but for white space. */
static void constrained_answers_are_whole_or_told_as_errors(void **state)
{
#define GREEDY "\"max_tokens\":300,\"temperature\":0"
#define ASK    "{\"messages\":[{\"role\":\"user\",\"content\":\"hello\"}]," GREEDY
#define SCHEMA                                                                                                         \
    "{\"title\":\"" NUMBER                                                                                             \
    "\",\"type\":\"object\",\"properties\":{\"a\":{\"$ref\":\"#/$defs/n\"},\"b\":{\"type\":\"array\","                 \
    "\"items\":{\"enum\":[\"x\"]},\"minItems\":1,\"maxItems\":1},\"c\":{\"type\":\"string\",\"pattern\":\"^[q]{2}$\"}" \
    "},"                                                                                                               \
    "\"required\":[\"a\",\"b\",\"c\"],\"additionalProperties\":false,\"$defs\":{\"n\":{\"type\":\"integer\","          \
    "\"minimum\":7,"                                                                                                   \
    "\"maximum\":7}}}"
#define FUNCTION "{\"type\":\"function\",\"function\":{\"name\":\"f\",\"strict\":true,\"parameters\":" SCHEMA "}}"
    every_allocation_fails_once(&stopped, "/v1/chat/completions",
                                ASK ",\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"name\":\"n\","
                                    "\"schema\":" SCHEMA "}}}");
    every_allocation_fails_once(&stopped, "/v1/chat/completions",
                                ASK ",\"grammar\":\"root ::= a{2} # " NUMBER "\\na ::= [x] | \\\"x\\\"\"}");
    every_allocation_fails_once(&stopped, "/v1/completions",
                                "{\"prompt\":\"a\"," GREEDY ",\"guided_regex\":\"a(bc){2}[d]" NUMBER "\"}");
    every_allocation_fails_once(&stopped, "/v1/completions",
                                "{\"prompt\":\"a\"," GREEDY ",\"guided_choice\":[\"z " NUMBER "\"]" STREAM "}");
    every_allocation_fails_once(&calls, "/v1/chat/completions",
                                ASK ",\"tool_choice\":\"required\",\"parallel_tool_calls\":false,\"tools\":[" FUNCTION
                                    "]}");
    every_allocation_fails_once(&calls, "/v1/chat/completions",
                                ASK ",\"tool_choice\":{\"type\":\"function\",\"function\":{\"name\":\"f\"}},"
                                    "\"parallel_tool_calls\":false,\"tools\":[" FUNCTION "]" STREAM "}");
    every_allocation_fails_once(&tool_use, "/v1/messages",
                                ASK ",\"tool_choice\":{\"type\":\"any\",\"disable_parallel_tool_use\":true},\"tools\":["
                                    "{\"name\":\"f\",\"input_schema\":" SCHEMA "}],\"stream\":true}");
}

static void text_work_is_whole_or_told_as_errors(void **state)
{
    every_allocation_fails_once(&plain, "/tokenize", "{\"content\":\"hello\",\"with_pieces\":true}");
    every_allocation_fails_once(&plain, "/v1/tokenize",
                                "{\"messages\":[{\"role\":\"user\",\"content\":\"hello\"}],"
                                "\"return_token_strs\":true}");
    every_allocation_fails_once(&plain, "/detokenize", "{\"tokens\":[5,6,7]}");
    every_allocation_fails_once(&plain, "/apply-template", ASK ",\"tools\":[" FUNCTION "]}");
    every_allocation_fails_once(&plain, "/v1/messages/count_tokens", ASK ",\"system\":\"s\"}");
    every_allocation_fails_once(&plain, "/v1/responses/input_tokens", "{\"input\":\"hello\",\"instructions\":\"s\"}");
}

static void what_observes_is_whole_or_told_as_an_error(void **state)
{
    static const char *const paths[] = {
        "/metrics", "/slots", "/debug/steps", "/api/edge/state", "/v1/models", "/v1/models/llama_linear",
        "/health",  "/ready", "/version",     "/openapi.json",   "/"};
    for (size_t i = 0; i < sizeof paths / sizeof *paths; i++)
        every_allocation_fails_once(&plain, paths[i], NULL);
}

/* Whatever fails while one is loaded, the one that was there stays in use. */
static void adapters_are_loaded_and_used_or_errors_are_told(void **state)
{
#define LOAD "{\"lora_name\":\"x\",\"lora_path\":\"%s\",\"load_inplace\":true}"
    char body[128];
    for (int i = 0; i < 2; i++) {
        snprintf(body, sizeof body, LOAD, i == 0 ? "a" : "a.gguf");
        every_allocation_fails_once(&done, "/v1/load_lora_adapter", body);
    }
    every_allocation_fails_once(&openai, "/v1/completions", "{\"prompt\":\"hello\",\"model\":\"x\"," LIMITS "}");
    every_allocation_fails_once(&openai, "/v1/completions",
                                "{\"prompt\":\"hello\",\"lora\":[{\"id\":0,\"scale\":0.5}]," LIMITS "}");
    every_allocation_fails_once(&scales, "/lora-adapters", "[{\"id\":0,\"scale\":0.5}]");
    every_allocation_fails_once(&plain, "/lora-adapters", NULL);
    every_allocation_fails_once(&plain, "/v1/models/x", NULL);
}

static int count(const char *text, const char *what)
{
    int n = 0;
    for (; (text = strstr(text, what)) != NULL; text += strlen(what))
        n++;
    return n;
}

/* The rest of its prompts would be computed for nobody, and only then would the client hear of it. */
static void a_stream_that_fails_computes_no_more_prompts(void **state)
{
    enum { N_PROMPTS = 16, WORDS = 200, ENOUGH = 40 };
    static char body[N_PROMPTS * (WORDS * 2 + 4) + 256], answer[MAX_ANSWER];
    struct dse_buffer out;
    dse_buffer_init_fixed(&out, body, sizeof body);
    dse_buffer_puts(&out,
                    "{\"max_tokens\":2,\"stream\":true,\"return_progress\":true,\"ignore_eos\":true,\"prompt\":[");
    for (int i = 0; i < N_PROMPTS * WORDS; i++)
        dse_buffer_printf(&out, "%s%c ", i == 0 ? "\"" : i % WORDS == 0 ? "\",\"" : "", 'a' + i % 26);
    dse_buffer_puts(&out, "\"]}");
    int n_told = 0;
    for (long n = 1; n_told < ENOUGH && n < 2000; n++) {
        uint64_t before = dse_counter_get(DSE_COUNTER_PROMPT_TOKENS);
        ask(&openai, "/v1/completions", body, n, answer);
        uint64_t computed = dse_counter_get(DSE_COUNTER_PROMPT_TOKENS) - before;
        if (strncmp(answer, "data:", 5) != 0 || !strstr(answer, "data: {\"error\"")) continue;
        n_told++;
        /* What the client saw, the step that failed, the one under way, and some to spare on a busy machine. */
        int most = (count(answer, "\"prompt_progress\"") + 8) * CHUNK_TOKENS;
        if (computed > (uint64_t)most)
            fail_msg("%llu prompt tokens, not %d at most", (unsigned long long)computed, most);
    }
    assert_int_equal(n_told, ENOUGH);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(chat_answers_are_whole_or_told_as_errors),
        cmocka_unit_test(completions_are_whole_or_told_as_errors),
        cmocka_unit_test(other_dialects_are_whole_or_told_as_errors),
        cmocka_unit_test(constrained_answers_are_whole_or_told_as_errors),
        cmocka_unit_test(text_work_is_whole_or_told_as_errors),
        cmocka_unit_test(what_observes_is_whole_or_told_as_an_error),
        cmocka_unit_test(adapters_are_loaded_and_used_or_errors_are_told),
        cmocka_unit_test(a_stream_that_fails_computes_no_more_prompts),
        cmocka_unit_test_setup_teardown(actions_on_slots_are_done_or_told_as_errors, open_saving, close_saving),
    };
    return cmocka_run_group_tests(tests, open_fixture, close_fixture);
}
