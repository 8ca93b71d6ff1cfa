/* Sets of parse stacks, and the automaton over them that is built while it is used. Called by grammar.c.
 *
 * A position is (node, cell): what may come next and, as a linked list of cells, where the rules on the stack return
 * to. Cells are held once per content, so equal stacks have equal numbers, and so have equal sets of positions
 * (configurations): each configuration is expanded once per byte class, whatever text led to it. A call in the last
 * place of a rule pushes nothing, so right recursion runs in constant depth.
 *
 * Never allocates after initialisation: when an array is full the caller flushes, and what does not fit even then is
 * treated as impossible. All loops are bounded; nothing recurses.
 */
#include "text/grammar_internal.h"

#include <string.h>

#include "base/random.h"

#define N_CELLS        (1u << 15)
#define N_CELL_HEADS   (1u << 15)
#define N_ENTRIES      (1u << 17)
#define MAX_CONFIGS    (1u << 13)
#define N_CONFIG_HEADS (1u << 13)
#define N_ROW_WORDS    (1u << 18)
#define N_SEEN         (2u * DSE_GRAMMAR_MAX_CLOSURE)
#define FIRST_CONFIG   2u /* after GRAMMAR_FULL and GRAMMAR_DEAD */

static uint64_t seeds[2]; /* the same in all matchers of this process */

static void make_seeds(void)
{
    dse_random_bytes(seeds, sizeof seeds);
}

static uint64_t hash_seed(int index)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, make_seeds);
    return seeds[index];
}

static uint32_t mix(uint64_t value)
{
    value *= 0x9E3779B97F4A7C15ull;
    return (uint32_t)(value >> 32);
}

enum dse_status dse_grammar_matcher_init(struct grammar_matcher *m, const struct dse_grammar *grammar,
                                         struct dse_error *err)
{
    memset(m, 0, sizeof *m);
    m->grammar = grammar;
    m->max_configs = N_ROW_WORDS / grammar->n_classes;
    if (m->max_configs > MAX_CONFIGS) m->max_configs = MAX_CONFIGS;
    /* Two blocks: hash heads and stamps start as zeros; the rest is written before it is read, so that its pages cost
     * nothing until a grammar needs them. */
    size_t zeroed = (N_CELL_HEADS + N_CONFIG_HEADS + N_SEEN) * sizeof(uint32_t);
    size_t other = (N_ENTRIES + DSE_GRAMMAR_MAX_CLOSURE + DSE_GRAMMAR_MAX_STACKS + N_SEEN) * sizeof(uint64_t) +
                   N_CELLS * sizeof *m->cells + m->max_configs * sizeof *m->configs + N_ROW_WORDS * sizeof *m->rows;
    m->zeroed_block = dse_calloc(DSE_MEM_TEXT, 1, zeroed);
    m->block = dse_alloc(DSE_MEM_TEXT, other);
    if (!m->zeroed_block || !m->block) {
        dse_grammar_matcher_deinit(m);
        return dse_fail_memory(err, zeroed + other, "a grammar state");
    }
    m->cell_heads = m->zeroed_block;
    m->config_heads = m->cell_heads + N_CELL_HEADS;
    m->seen_stamp = m->config_heads + N_CONFIG_HEADS;
    m->entries = m->block;
    m->work = m->entries + N_ENTRIES;
    m->result = m->work + DSE_GRAMMAR_MAX_CLOSURE;
    m->seen = m->result + DSE_GRAMMAR_MAX_STACKS;
    m->cells = (struct grammar_cell *)(m->seen + N_SEEN);
    m->configs = (struct grammar_config *)(m->cells + N_CELLS);
    m->rows = (uint32_t *)(m->configs + m->max_configs);
    m->cells[0] = (struct grammar_cell){.hash = {hash_seed(0), hash_seed(1)}};
    m->n_cells = 1;
    memset(m->configs, 0, FIRST_CONFIG * sizeof *m->configs);
    m->n_configs = FIRST_CONFIG;
    for (uint32_t i = 0; i < grammar->n_classes; i++)
        m->rows[GRAMMAR_DEAD * grammar->n_classes + i] = GRAMMAR_DEAD;
    return DSE_OK;
}

void dse_grammar_matcher_deinit(struct grammar_matcher *m)
{
    dse_free(m->zeroed_block);
    dse_free(m->block);
    m->zeroed_block = m->block = NULL;
}

/* ---- cells ------------------------------------------------------------------------------------------------- */

static uint32_t cell_slot(uint32_t node, uint32_t parent)
{
    return mix((uint64_t)node << 32 | parent) % N_CELL_HEADS;
}

static uint64_t scramble(uint64_t value)
{
    value = (value ^ value >> 31) * 0x7FB5D329728EA185ull;
    value = (value ^ value >> 27) * 0x81DADEF4BC2DD44Dull;
    return value ^ value >> 33;
}

/* A node on top of a stack that is known by its hash. */
static void hash_node(uint32_t node, const uint64_t below[2], uint64_t hash[2])
{
    hash[0] = scramble(below[0] * 3 + node + 0x9E3779B97F4A7C15ull);
    hash[1] = scramble(below[1] + ((uint64_t)node << 20) * 0xD1342543DE82EF95ull + 0xA0761D6478BD642Full);
}

static void add_cell(struct grammar_matcher *m, uint32_t node, uint32_t parent)
{
    uint32_t *head = &m->cell_heads[cell_slot(node, parent)];
    m->cells[m->n_cells] = (struct grammar_cell){node, parent, *head, m->cells[parent].depth + 1, {0}};
    hash_node(node, m->cells[parent].hash, m->cells[m->n_cells].hash);
    *head = m->n_cells++;
}

/* 0: there is no room. */
static uint32_t find_cell(struct grammar_matcher *m, uint32_t node, uint32_t parent)
{
    for (uint32_t i = m->cell_heads[cell_slot(node, parent)]; i; i = m->cells[i].chain)
        if (m->cells[i].node == node && m->cells[i].parent == parent) return i;
    if (m->n_cells == N_CELLS) return 0;
    add_cell(m, node, parent);
    return m->n_cells - 1;
}

/* ---- closure: everything reachable without taking a byte --------------------------------------------------- */

static void begin_closure(struct grammar_matcher *m)
{
    if (++m->stamp == 0) {
        memset(m->seen_stamp, 0, N_SEEN * sizeof *m->seen_stamp);
        m->stamp = 1;
    }
    m->n_work = m->n_result = m->n_seen = 0;
}

/* Queues a position once; false past the limit. */
static bool visit(struct grammar_matcher *m, uint32_t node, uint32_t cell)
{
    uint64_t position = (uint64_t)node << 32 | cell;
    uint32_t slot = mix(position) % N_SEEN;
    for (; m->seen_stamp[slot] == m->stamp; slot = (slot + 1) % N_SEEN)
        if (m->seen[slot] == position) return true;
    if (m->n_seen == DSE_GRAMMAR_MAX_CLOSURE) return false;
    m->n_seen++;
    m->seen[slot] = position;
    m->seen_stamp[slot] = m->stamp;
    m->work[m->n_work++] = position;
    return true;
}

static bool add_result(struct grammar_matcher *m, uint64_t position)
{
    if (m->n_result == DSE_GRAMMAR_MAX_STACKS) return false;
    m->result[m->n_result++] = position;
    return true;
}

/* DSE_OK, DSE_ERR_LIMIT (too many alternatives) or DSE_ERR_NO_MEMORY (no room for cells). */
static enum dse_status run_closure(struct grammar_matcher *m)
{
    const struct grammar_node *nodes = m->grammar->nodes;
    while (m->n_work > 0) {
        uint64_t position = m->work[--m->n_work];
        uint32_t node = (uint32_t)(position >> 32), cell = (uint32_t)position, to;
        bool fits = true;
        m->work_done++;
        switch ((enum grammar_op)nodes[node].op) {
        case GRAMMAR_BYTES: fits = add_result(m, position); break;
        case GRAMMAR_SPLIT: fits = visit(m, nodes[node].next, cell) && visit(m, nodes[node].other, cell); break;
        case GRAMMAR_RETURN:
            fits = cell == 0 ? add_result(m, 0) : visit(m, m->cells[cell].node, m->cells[cell].parent);
            break;
        case GRAMMAR_CALL:
        case GRAMMAR_CALL_RULE:
            to = cell;
            if (nodes[node].next != 0) { /* else the rule ends here: nothing to come back to */
                if (m->cells[cell].depth == DSE_GRAMMAR_MAX_DEPTH) break; /* deeper nesting is not offered */
                to = find_cell(m, nodes[node].next, cell);
                if (!to) return DSE_ERR_NO_MEMORY;
            }
            fits = visit(m, nodes[node].other, to);
            break;
        }
        if (!fits) return DSE_ERR_LIMIT;
    }
    return DSE_OK;
}

/* ---- configurations ---------------------------------------------------------------------------------------- */

static void sift(uint64_t *heap, uint32_t at, uint32_t n)
{
    for (uint32_t child; (child = 2 * at + 1) < n; at = child) {
        if (child + 1 < n && heap[child + 1] > heap[child]) child++;
        if (heap[at] >= heap[child]) return;
        uint64_t swap = heap[at];
        heap[at] = heap[child];
        heap[child] = swap;
    }
}

static void sort_positions(uint64_t *values, uint32_t n)
{
    if (n <= 24) {
        for (uint32_t i = 1; i < n; i++) {
            uint64_t value = values[i];
            uint32_t at = i;
            for (; at > 0 && values[at - 1] > value; at--)
                values[at] = values[at - 1];
            values[at] = value;
        }
        return;
    }
    for (uint32_t i = n / 2; i-- > 0;)
        sift(values, i, n);
    for (uint32_t i = n - 1; i > 0; i--) {
        uint64_t swap = values[0];
        values[0] = values[i];
        values[i] = swap;
        sift(values, 0, i);
    }
}

/* The configuration with the positions of m->result. */
static uint32_t intern(struct grammar_matcher *m)
{
    if (m->n_result == 0) return GRAMMAR_DEAD;
    sort_positions(m->result, m->n_result);
    uint64_t hash = m->n_result;
    for (uint32_t i = 0; i < m->n_result; i++)
        hash = (hash ^ m->result[i]) * 0x9E3779B97F4A7C15ull, hash ^= hash >> 29;
    uint32_t *head = &m->config_heads[mix(hash) % N_CONFIG_HEADS];
    for (uint32_t i = *head; i; i = m->configs[i].chain)
        if (m->configs[i].count == m->n_result &&
            memcmp(m->entries + m->configs[i].first, m->result, m->n_result * sizeof *m->result) == 0)
            return i;
    if (m->n_configs == m->max_configs || m->n_result > N_ENTRIES - m->n_entries) return GRAMMAR_FULL;
    uint32_t config = m->n_configs++;
    m->configs[config] = (struct grammar_config){.first = m->n_entries, .count = m->n_result, .chain = *head};
    *head = config;
    memcpy(m->entries + m->n_entries, m->result, m->n_result * sizeof *m->result);
    m->n_entries += m->n_result;
    memset(m->rows + (size_t)config * m->grammar->n_classes, 0, m->grammar->n_classes * sizeof *m->rows);
    return config;
}

static uint32_t close_and_intern(struct grammar_matcher *m)
{
    switch (run_closure(m)) {
    case DSE_OK: return intern(m);
    case DSE_ERR_LIMIT: return GRAMMAR_DEAD;
    default: return GRAMMAR_FULL;
    }
}

uint32_t dse_grammar_matcher_start(struct grammar_matcher *m)
{
    begin_closure(m);
    visit(m, m->grammar->start, 0);
    return close_and_intern(m);
}

uint32_t dse_grammar_matcher_step(struct grammar_matcher *m, uint32_t config, uint32_t byte_class)
{
    uint32_t *known = &m->rows[(size_t)config * m->grammar->n_classes + byte_class];
    if (*known) return *known;
    const struct grammar_node *nodes = m->grammar->nodes;
    uint8_t byte = m->grammar->byte_of_class[byte_class];
    begin_closure(m);
    const struct grammar_config *c = &m->configs[config];
    for (uint32_t i = 0; i < c->count; i++) {
        uint64_t position = m->entries[c->first + i];
        const struct grammar_node *n = &nodes[position >> 32];
        m->work_done++;
        if (n->op == GRAMMAR_BYTES && n->lo <= byte && byte <= n->hi) visit(m, n->next, (uint32_t)position);
    }
    uint32_t to = close_and_intern(m);
    if (to != GRAMMAR_FULL) *known = to;
    return to;
}

/* Entries are sorted by numbers of cells, which say nothing: a sum does not mind the order. */
void dse_grammar_matcher_hash(const struct grammar_matcher *m, uint32_t config, uint64_t hash[2])
{
    const struct grammar_config *c = &m->configs[config];
    hash[0] = c->count;
    hash[1] = c->count;
    for (uint32_t i = 0; i < c->count; i++) {
        uint64_t position = m->entries[c->first + i], one[2];
        hash_node((uint32_t)(position >> 32), m->cells[(uint32_t)position].hash, one);
        hash[0] += one[0];
        hash[1] += one[1];
    }
}

/* Cells that the configuration's stacks use move down in order, which keeps parents before children. */
uint32_t dse_grammar_matcher_flush(struct grammar_matcher *m, uint32_t config)
{
    struct grammar_config kept = m->configs[config];
    uint32_t *moved = m->rows; /* as scratch: old cell -> 1 marked, then the new number; N_CELLS fits */
    memset(moved, 0, N_CELLS * sizeof *moved);
    memcpy(m->result, m->entries + kept.first, kept.count * sizeof *m->result);
    for (uint32_t i = 0; i < kept.count; i++)
        for (uint32_t cell = (uint32_t)m->result[i]; cell && !moved[cell]; cell = m->cells[cell].parent)
            moved[cell] = 1;
    uint32_t n_old = m->n_cells;
    memset(m->cell_heads, 0, N_CELL_HEADS * sizeof *m->cell_heads);
    m->n_cells = 1;
    for (uint32_t i = 1; i < n_old; i++) {
        if (!moved[i]) continue;
        struct grammar_cell cell = m->cells[i];
        moved[i] = m->n_cells;
        add_cell(m, cell.node, moved[cell.parent]);
    }
    moved[0] = 0;
    for (uint32_t i = 0; i < kept.count; i++)
        m->result[i] = (m->result[i] & ~0xFFFFFFFFull) | moved[(uint32_t)m->result[i]];
    m->n_result = kept.count;
    memset(m->config_heads, 0, N_CONFIG_HEADS * sizeof *m->config_heads);
    m->n_configs = FIRST_CONFIG;
    m->n_entries = 0;
    /* The scratch covered the row of the dead configuration. */
    for (uint32_t i = 0; i < m->grammar->n_classes; i++)
        m->rows[GRAMMAR_DEAD * m->grammar->n_classes + i] = GRAMMAR_DEAD;
    return intern(m);
}
