/* The header of one GGUF file: magic, metadata, tensor table.
 *
 * Everything here is untrusted. Every count and length is compared with the bytes that remain before it is used, every
 * sum and product is checked, and memory grows with what was actually read, never with what the header claims. No byte
 * of the data section is touched. Called by gguf.c for each shard.
 */
#include "model/gguf_internal.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "base/utf8.h"

/* Smallest encodings, to bound counts by the remaining bytes: key (8 + 1), type (4), value (1). */
#define MIN_VALUE_BYTES 14
/* Name (8 + 1), dimensions (4 + 8), type (4), offset (8). */
#define MIN_TENSOR_BYTES 33
#define NAMES_MAX_BYTES  ((size_t)512 << 20)

struct cursor {
    const uint8_t *data;
    size_t bytes, at;
    const char *path;
    struct dse_error *err;
};

/* A tensor's line of the table until the data section's start is known. */
struct placed {
    size_t tensor, offset, header_at;
};

static __attribute__((format(printf, 4, 5))) enum dse_status refuse(const struct cursor *c, enum dse_status status,
                                                                    size_t at, const char *format, ...)
{
    char text[384];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    return dse_fail_at(c->err, status, c->path, (int64_t)at, "%s: %s (at byte %zu)", c->path, text, at);
}

static enum dse_status truncated(const struct cursor *c, const char *what, size_t need)
{
    size_t have = c->bytes - c->at;
    enum dse_status status = refuse(c, DSE_ERR_CORRUPT, c->at,
                                    "the file ends inside %s: it needs %zu bytes, %zu remain; the file is truncated",
                                    what, need, have);
    if (c->err != NULL) {
        c->err->need = (int64_t)need;
        c->err->have = (int64_t)have;
    }
    return status;
}

static enum dse_status read_u32(struct cursor *c, const char *what, uint32_t *out)
{
    if (!dse_range_fits(c->at, 4, c->bytes)) return truncated(c, what, 4);
    memcpy(out, c->data + c->at, 4);
    c->at += 4;
    return DSE_OK;
}

static enum dse_status read_u64(struct cursor *c, const char *what, uint64_t *out)
{
    if (!dse_range_fits(c->at, 8, c->bytes)) return truncated(c, what, 8);
    memcpy(out, c->data + c->at, 8);
    c->at += 8;
    return DSE_OK;
}

static enum dse_status read_string(struct cursor *c, const char *what, struct dse_gguf_string *out)
{
    size_t at = c->at;
    uint64_t length = 0;
    enum dse_status status = read_u64(c, what, &length);
    if (status != DSE_OK) return status;
    if (length > c->bytes - c->at)
        return refuse(c, DSE_ERR_CORRUPT, at, "%s claims a length of %llu bytes, %zu remain in the file", what,
                      (unsigned long long)length, c->bytes - c->at);
    *out = (struct dse_gguf_string){(const char *)c->data + c->at, (size_t)length};
    c->at += (size_t)length;
    return DSE_OK;
}

/* Keys and tensor names end up in messages, logs and C strings. */
static bool is_clean_name(struct dse_gguf_string name)
{
    for (size_t i = 0; i < name.bytes; i++) {
        unsigned char byte = (unsigned char)name.data[i];
        if (byte < 0x20 || byte == 0x7F) return false;
    }
    return dse_utf8_valid(name.data, name.bytes);
}

static enum dse_status read_magic(struct cursor *c, uint64_t *n_tensors, uint64_t *n_values)
{
    if (c->bytes < 4 || memcmp(c->data, "GGUF", 4) != 0) {
        char start[64];
        size_t i = 0;
        while (i < c->bytes && i < 256 && (c->data[i] == ' ' || (c->data[i] >= '\t' && c->data[i] <= '\r')))
            i++;
        const char *hint = c->bytes == 0                       ? "it is empty"
                           : i < c->bytes && c->data[i] == '<' ? "it looks like a web page; download it again"
                                                               : "the magic GGUF is missing";
        dse_printable((const char *)c->data, c->bytes < 16 ? c->bytes : 16, start);
        return refuse(c, DSE_ERR_CORRUPT, 0, "not a GGUF file: %s (starts with \"%s\")", hint, start);
    }
    c->at = 4;
    uint32_t version = 0;
    enum dse_status status = read_u32(c, "the version", &version);
    if (status != DSE_OK) return status;
    if (version != 2 && version != 3) {
        if (version != 0 && (version & 0xFFFF) == 0)
            return refuse(c, DSE_ERR_UNSUPPORTED, 4, "a big-endian GGUF file; convert it to little-endian");
        return refuse(c, DSE_ERR_UNSUPPORTED, 4, "GGUF version %u, versions 2 and 3 are read", version);
    }
    if ((status = read_u64(c, "the tensor count", n_tensors)) != DSE_OK) return status;
    if ((status = read_u64(c, "the key count", n_values)) != DSE_OK) return status;
    size_t remain = c->bytes - c->at;
    if (*n_tensors > remain / MIN_TENSOR_BYTES)
        return refuse(c, DSE_ERR_CORRUPT, 8,
                      "the tensor count %llu cannot fit into the remaining %zu bytes; the file is truncated or damaged",
                      (unsigned long long)*n_tensors, remain);
    if (*n_tensors > DSE_GGUF_MAX_TENSORS)
        return refuse(c, DSE_ERR_LIMIT, 8, "the tensor count %llu is above the limit of %d",
                      (unsigned long long)*n_tensors, DSE_GGUF_MAX_TENSORS);
    if (*n_values > remain / MIN_VALUE_BYTES)
        return refuse(c, DSE_ERR_CORRUPT, 16,
                      "the key count %llu cannot fit into the remaining %zu bytes; the file is truncated or damaged",
                      (unsigned long long)*n_values, remain);
    if (*n_values > DSE_GGUF_MAX_VALUES)
        return refuse(c, DSE_ERR_LIMIT, 16, "the key count %llu is above the limit of %d",
                      (unsigned long long)*n_values, DSE_GGUF_MAX_VALUES);
    return DSE_OK;
}

static enum dse_status read_array(struct cursor *c, const char *what, const char *key, struct dse_gguf_value *value)
{
    size_t at = c->at;
    uint32_t type = 0;
    uint64_t count = 0;
    enum dse_status status = read_u32(c, what, &type);
    if (status == DSE_OK) status = read_u64(c, what, &count);
    if (status != DSE_OK) return status;
    if (type == DSE_GGUF_ARRAY)
        return refuse(c, DSE_ERR_UNSUPPORTED, at, "key '%s' is an array of arrays, which no model uses", key);
    if (type > DSE_GGUF_F64)
        return refuse(c, DSE_ERR_CORRUPT, at, "key '%s' is an array of unknown type %u", key, type);
    size_t element = dse_gguf_value_bytes((enum dse_gguf_value_type)type);
    size_t remain = c->bytes - c->at;
    if (count > remain / (element != 0 ? element : 8))
        return refuse(c, DSE_ERR_CORRUPT, at, "key '%s' claims an array of %llu elements, only %zu bytes remain", key,
                      (unsigned long long)count, remain);
    value->element_type = (enum dse_gguf_value_type)type;
    value->count = (size_t)count;
    value->data = c->data + c->at;
    if (element != 0) {
        c->at += value->count * element;
    } else {
        for (uint64_t i = 0; i < count; i++) {
            struct dse_gguf_string ignored;
            if ((status = read_string(c, what, &ignored)) != DSE_OK) return status;
        }
    }
    value->bytes = (size_t)(c->data + c->at - value->data);
    return DSE_OK;
}

static enum dse_status read_value(struct cursor *c, struct dse_gguf_value *value)
{
    char key[64], what[96];
    size_t key_at = c->at;
    uint32_t type = 0;
    enum dse_status status = read_string(c, "a key", &value->key);
    if (status != DSE_OK) return status;
    if (value->key.bytes == 0 || value->key.bytes > DSE_GGUF_MAX_KEY_BYTES)
        return refuse(c, DSE_ERR_CORRUPT, key_at, "a key of %zu bytes; 1 to %d are allowed", value->key.bytes,
                      DSE_GGUF_MAX_KEY_BYTES);
    dse_printable(value->key.data, value->key.bytes, key);
    if (!is_clean_name(value->key))
        return refuse(c, DSE_ERR_CORRUPT, key_at, "key '%s' contains control characters or is not UTF-8", key);
    snprintf(what, sizeof what, "the value of key '%s'", key);
    size_t type_at = c->at;
    if ((status = read_u32(c, what, &type)) != DSE_OK) return status;
    if (type > DSE_GGUF_F64)
        return refuse(c, DSE_ERR_CORRUPT, type_at, "key '%s' has the unknown value type %u", key, type);
    value->type = (enum dse_gguf_value_type)type;
    if (type == DSE_GGUF_ARRAY) return read_array(c, what, key, value);
    if (type == DSE_GGUF_STRING) {
        struct dse_gguf_string text = {0};
        if ((status = read_string(c, what, &text)) != DSE_OK) return status;
        value->data = (const uint8_t *)text.data;
        value->bytes = text.bytes;
        return DSE_OK;
    }
    value->bytes = dse_gguf_value_bytes(value->type);
    if (!dse_range_fits(c->at, value->bytes, c->bytes)) return truncated(c, what, value->bytes);
    value->data = c->data + c->at;
    c->at += value->bytes;
    return DSE_OK;
}

/* Makes room for one more element, doubling up to the claimed count. */
static bool grow(void **array, size_t used, size_t *capacity, size_t claimed, size_t element)
{
    if (used < *capacity) return true;
    size_t next = *capacity == 0 ? 64 : *capacity * 2, bytes;
    if (next > claimed) next = claimed;
    if (!dse_mul_size(next, element, &bytes)) return false;
    void *moved = dse_realloc(DSE_MEM_MODEL, *array, bytes);
    if (moved == NULL) return false;
    *array = moved;
    *capacity = next;
    return true;
}

static int compare_strings(struct dse_gguf_string a, struct dse_gguf_string b)
{
    int order = memcmp(a.data, b.data, a.bytes < b.bytes ? a.bytes : b.bytes);
    return order != 0 ? order : (a.bytes > b.bytes) - (a.bytes < b.bytes);
}

static int compare_values(const void *a, const void *b)
{
    const struct dse_gguf_value *const *x = a, *const *y = b;
    int order = compare_strings((*x)->key, (*y)->key);
    /* Equal keys stay in file order, so that the message points at the second one. */
    return order != 0 ? order : (*x > *y) - (*x < *y);
}

static enum dse_status read_values(struct cursor *c, struct dse_gguf_shard *shard, size_t claimed)
{
    size_t capacity = 0;
    for (size_t i = 0; i < claimed; i++) {
        if (!grow((void **)&shard->values, i, &capacity, claimed, sizeof *shard->values))
            return dse_fail_memory(c->err, (capacity + 1) * sizeof *shard->values, "metadata");
        shard->values[i] = (struct dse_gguf_value){0};
        enum dse_status status = read_value(c, &shard->values[i]);
        if (status != DSE_OK) return status;
        shard->n_values = i + 1;
    }
    shard->by_key = dse_calloc(DSE_MEM_MODEL, claimed + 1, sizeof *shard->by_key);
    if (shard->by_key == NULL) return dse_fail_memory(c->err, claimed * sizeof *shard->by_key, "metadata index");
    for (size_t i = 0; i < claimed; i++)
        shard->by_key[i] = &shard->values[i];
    qsort(shard->by_key, claimed, sizeof *shard->by_key, compare_values);
    for (size_t i = 1; i < claimed; i++) {
        const struct dse_gguf_value *value = shard->by_key[i];
        if (compare_strings(shard->by_key[i - 1]->key, value->key) == 0) {
            char key[64];
            return refuse(c, DSE_ERR_CORRUPT, (size_t)((const uint8_t *)value->key.data - c->data),
                          "key '%s' appears twice", dse_printable(value->key.data, value->key.bytes, key));
        }
    }
    return DSE_OK;
}

const struct dse_gguf_value *dse_gguf_shard_value(const struct dse_gguf_shard *shard, const char *key)
{
    struct dse_gguf_string wanted = {key, strlen(key)};
    size_t low = 0, high = shard->by_key != NULL ? shard->n_values : 0;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        int order = compare_strings(shard->by_key[middle]->key, wanted);
        if (order == 0) return shard->by_key[middle];
        if (order < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return NULL;
}

static enum dse_status read_alignment(struct cursor *c, const struct dse_gguf_shard *shard, size_t *alignment)
{
    *alignment = 32;
    const struct dse_gguf_value *value = dse_gguf_shard_value(shard, "general.alignment");
    if (value == NULL) return DSE_OK;
    size_t at = (size_t)(value->data - c->data);
    int64_t number;
    if (!dse_gguf_value_i64(value, &number))
        return refuse(c, DSE_ERR_CORRUPT, at, "key 'general.alignment' is not an integer");
    if (number < 8 || number > DSE_GGUF_MAX_ALIGNMENT || (number & (number - 1)) != 0)
        return refuse(c, DSE_ERR_CORRUPT, at, "general.alignment is %lld, expected a power of two from 8 to %d",
                      (long long)number, DSE_GGUF_MAX_ALIGNMENT);
    *alignment = (size_t)number;
    return DSE_OK;
}

/* Shape and bytes of one tensor; each product is checked. */
static enum dse_status read_shape(struct cursor *c, const char *name, struct dse_tensor *tensor)
{
    size_t at = c->at;
    uint32_t n_dims = 0, type = 0;
    char what[96];
    snprintf(what, sizeof what, "the table entry of tensor '%s'", name);
    enum dse_status status = read_u32(c, what, &n_dims);
    if (status != DSE_OK) return status;
    if (n_dims < 1 || n_dims > DSE_TENSOR_MAX_DIMS)
        return refuse(c, DSE_ERR_CORRUPT, at, "tensor '%s' has %u dimensions, expected 1 to %d", name, n_dims,
                      DSE_TENSOR_MAX_DIMS);
    tensor->n_dims = (int)n_dims;
    for (uint32_t i = 0; i < DSE_TENSOR_MAX_DIMS; i++)
        tensor->shape[i] = 1;
    for (uint32_t i = 0; i < n_dims; i++) {
        uint64_t extent = 0;
        if ((status = read_u64(c, what, &extent)) != DSE_OK) return status;
        if (extent == 0) return refuse(c, DSE_ERR_CORRUPT, c->at - 8, "tensor '%s' has no elements", name);
        if (extent > (uint64_t)INT64_MAX)
            return refuse(c, DSE_ERR_CORRUPT, c->at - 8, "tensor '%s': dimension %u is %llu", name, i,
                          (unsigned long long)extent);
        tensor->shape[n_dims - 1 - i] = (size_t)extent;
    }
    size_t type_at = c->at;
    if ((status = read_u32(c, what, &type)) != DSE_OK) return status;
    const struct dse_type_info *info = dse_type_info(type);
    /* Numbers above are ours and mean nothing in this format. */
    if (info == NULL || type > DSE_TYPE_BF16)
        return refuse(c, DSE_ERR_UNSUPPORTED, type_at, "tensor '%s' has element type %u, which is not supported", name,
                      type);
    tensor->type = (enum dse_type)type;
    size_t row = tensor->shape[n_dims - 1], bytes = 0;
    if (row % (size_t)info->block_elements != 0)
        return refuse(c, DSE_ERR_CORRUPT, at, "tensor '%s': rows of %zu are not whole blocks of %d (%s)", name, row,
                      info->block_elements, info->name);
    bool fits = dse_type_row_bytes(tensor->type, row, &bytes);
    for (uint32_t i = 0; fits && i + 1 < n_dims; i++)
        fits = dse_mul_size(bytes, tensor->shape[i], &bytes);
    /* Also the number of elements must be countable: blocks of less than a byte per element overflow later. */
    size_t elements = 1;
    for (uint32_t i = 0; fits && i < n_dims; i++)
        fits = dse_mul_size(elements, tensor->shape[i], &elements);
    if (!fits || elements > (size_t)INT64_MAX)
        return refuse(c, DSE_ERR_CORRUPT, at, "tensor '%s': the size of its dimensions overflows", name);
    tensor->bytes = bytes;
    return DSE_OK;
}

static int compare_offsets(const void *a, const void *b)
{
    const struct placed *x = a, *y = b;
    return (x->offset > y->offset) - (x->offset < y->offset);
}

/* Puts every tensor into the data section: aligned, inside the file, not overlapping. */
static enum dse_status place(struct cursor *c, struct dse_gguf_shard *shard, struct placed *table, size_t alignment)
{
    size_t start = 0;
    if (!dse_align_size(c->at, alignment, &start) || start > c->bytes)
        return refuse(c, DSE_ERR_CORRUPT, c->at,
                      "the data section with tensor '%s' would start behind the end of the file; it is truncated",
                      shard->tensors[0].name);
    size_t room = c->bytes - start;
    for (size_t i = 0; i < shard->n_tensors; i++) {
        struct dse_tensor *tensor = &shard->tensors[i];
        size_t offset = table[i].offset;
        if (offset % alignment != 0)
            return refuse(c, DSE_ERR_CORRUPT, table[i].header_at, "tensor '%s': offset %zu is not a multiple of %zu",
                          tensor->name, offset, alignment);
        if (!dse_range_fits(offset, tensor->bytes, room)) {
            size_t missing = offset > room ? offset - room : 0;
            if (!dse_add_size(missing, offset > room ? tensor->bytes : tensor->bytes - (room - offset), &missing))
                missing = SIZE_MAX;
            refuse(c, DSE_ERR_CORRUPT, table[i].header_at,
                   "tensor '%s' needs %zu bytes at offset %zu but the data section has %zu: %zu bytes are missing, the "
                   "file is truncated or damaged",
                   tensor->name, tensor->bytes, offset, room, missing);
            if (c->err != NULL) {
                c->err->need = (int64_t)(missing > INT64_MAX ? INT64_MAX : missing);
                c->err->have = (int64_t)c->bytes;
            }
            return DSE_ERR_CORRUPT;
        }
        tensor->data = c->data + start + offset;
    }
    qsort(table, shard->n_tensors, sizeof *table, compare_offsets);
    for (size_t i = 1; i < shard->n_tensors; i++) {
        const struct dse_tensor *before = &shard->tensors[table[i - 1].tensor];
        if (table[i - 1].offset + before->bytes > table[i].offset)
            return refuse(c, DSE_ERR_CORRUPT, table[i].header_at, "tensors '%s' and '%s' overlap", before->name,
                          shard->tensors[table[i].tensor].name);
    }
    return DSE_OK;
}

static enum dse_status read_tensor(struct cursor *c, struct dse_gguf_shard *shard, struct dse_tensor *tensor,
                                   struct placed *placed)
{
    char name[64];
    struct dse_gguf_string text = {0};
    uint64_t offset = 0;
    size_t at = c->at;
    enum dse_status status = read_string(c, "a tensor name", &text);
    if (status != DSE_OK) return status;
    dse_printable(text.data, text.bytes, name);
    if (text.bytes == 0 || text.bytes > DSE_GGUF_MAX_NAME_BYTES)
        return refuse(c, DSE_ERR_CORRUPT, at, "a tensor name of %zu bytes ('%s'); 1 to %d are allowed", text.bytes,
                      name, DSE_GGUF_MAX_NAME_BYTES);
    if (!is_clean_name(text))
        return refuse(c, DSE_ERR_CORRUPT, at, "tensor name '%s' contains control characters or is not UTF-8", name);
    if ((status = read_shape(c, name, tensor)) != DSE_OK) return status;
    if ((status = read_u64(c, "a tensor offset", &offset)) != DSE_OK) return status;
    tensor->name = dse_arena_strndup(&shard->names, text.data, text.bytes);
    if (tensor->name == NULL) return dse_fail_memory(c->err, text.bytes, "tensor names");
    placed->offset = (size_t)offset;
    placed->header_at = at;
    return DSE_OK;
}

static enum dse_status read_tensors(struct cursor *c, struct dse_gguf_shard *shard, size_t claimed, size_t alignment)
{
    struct placed *table = NULL;
    size_t tensor_capacity = 0, table_capacity = 0;
    enum dse_status status = DSE_OK;
    for (size_t i = 0; i < claimed; i++) {
        if (!grow((void **)&shard->tensors, i, &tensor_capacity, claimed, sizeof *shard->tensors) ||
            !grow((void **)&table, i, &table_capacity, claimed, sizeof *table)) {
            status = dse_fail_memory(c->err, claimed * sizeof *shard->tensors, "the tensor table");
            goto out;
        }
        shard->tensors[i] = (struct dse_tensor){0};
        table[i].tensor = i;
        if ((status = read_tensor(c, shard, &shard->tensors[i], &table[i])) != DSE_OK) goto out;
        shard->n_tensors = i + 1;
    }
    if (claimed > 0) status = place(c, shard, table, alignment);
out:
    dse_free(table);
    return status;
}

enum dse_status dse_gguf_parse(struct dse_gguf_shard *shard, struct dse_error *err)
{
    struct cursor c = {shard->map.data, shard->map.bytes, 0, shard->path, err};
    uint64_t n_tensors = 0, n_values = 0;
    size_t alignment = 0;
    dse_arena_init(&shard->names, DSE_MEM_MODEL, NAMES_MAX_BYTES);
    enum dse_status status = read_magic(&c, &n_tensors, &n_values);
    if (status == DSE_OK) status = read_values(&c, shard, (size_t)n_values);
    if (status == DSE_OK) status = read_alignment(&c, shard, &alignment);
    if (status == DSE_OK) status = read_tensors(&c, shard, (size_t)n_tensors, alignment);
    return status;
}
