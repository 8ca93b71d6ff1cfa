/* The engine's insides, shared by engine.c (threads, mailbox, public calls) and step.c (one turn of the batch). */
#ifndef DSE_ENGINE_ENGINE_INTERNAL_H
#define DSE_ENGINE_ENGINE_INTERNAL_H

#include <dse/dse.h>
#include <pthread.h>
#include <stdatomic.h>

#include "engine/budget.h"
#include "engine/forward.h"
#include "engine/scheduler.h"
#include "engine/step_meter.h"
#include "engine/task.h"

struct dse_out_row {
    struct dse_sequence *sequence;
    int32_t row;
};

struct dse_engine {
    struct dse_model *model; /* referenced */
    struct dse_engine_sizes sizes;
    pthread_t thread;
    bool thread_started;

    /* Mailbox and registry of every unfinished task: any thread, under lock, held for a few loads and stores only. */
    pthread_mutex_t lock;
    pthread_cond_t wake;
    struct dse_task *inbox, **inbox_end;
    struct dse_task *registry;
    int n_in_flight; /* accepted and not finished, also while submit still prepares one */
    bool cancel_pending, stopping;
    bool disk_news;                 /* something was read or written */
    struct dse_transfer *transfers; /* asked for, not yet done (saved_prefix.c) */
    int n_transfers;                /* calls that may ask */
    bool ended;                     /* the engine thread answers nobody any more */
    pthread_cond_t transferred;
    uint64_t next_id;

    uint64_t model_identity[2]; /* for the prefix cache; constant */
    atomic_bool broken;         /* the model file was truncated: nothing runs any more */

    /* The engine thread's own. */
    struct dse_scheduler scheduler;
    struct dse_prefix_disk *disk; /* NULL: none */
    struct dse_forward forward;
    struct dse_out_row *out_rows; /* [max_rows] rows that want logits */
    int32_t *out_index;           /* [max_out] */
    float *choice_logits;         /* [V] copy for one of several choices */
    float *hidden;                /* [D] a hidden state on its way out */
    uint64_t *mask;               /* [(tokens + 63) / 64] grammar mask */
    struct dse_chunk chunk;       /* prompt tokens of a step */
    bool guarded;                 /* allocation is forbidden right now */
    struct dse_task *dead;        /* finished in this turn, freed at its end */
    struct dse_step_meter meter;
    struct dse_step_ring steps; /* read by any thread */
};

/* step.c: one turn over everything that runs; false when nothing could be computed. */
bool dse_engine_step(struct dse_engine *engine);
/* Ends a choice: releases its memory, then tells the client. Error only with DSE_FINISH_ERROR. */
void dse_engine_finish(struct dse_engine *engine, struct dse_sequence *sequence, enum dse_finish finish,
                       const struct dse_error *error);
/* engine.c: takes a finished task out of the registry and refreshes the gauges. */
void dse_engine_unregister(struct dse_engine *engine, struct dse_task *task);

#endif
