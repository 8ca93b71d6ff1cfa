/* Evaluator (jinja_eval.c, jinja_arithmetic.c) and statements (jinja_exec.c). Called by chat_template.c and each
 * other. */
#ifndef DSE_TEXT_JINJA_EXEC_H
#define DSE_TEXT_JINJA_EXEC_H

#include "text/jinja_ast.h"
#include "text/jinja_builtins.h"

struct dse_jv_callable {
    const struct dse_jinja_builtin *builtin; /* NULL: a macro */
    struct dse_jv self;                      /* of a method */
    const struct dse_jinja_node *macro;
    struct dse_jinja_scope *closure;
};

enum dse_jinja_flow { DSE_FLOW_NEXT, DSE_FLOW_BREAK, DSE_FLOW_CONTINUE, DSE_FLOW_FAIL };

struct dse_jv dse_jinja_eval(struct dse_jinja_run *run, const struct dse_jinja_node *node);
enum dse_jinja_flow dse_jinja_exec(struct dse_jinja_run *run, const struct dse_jinja_node *node);
struct dse_jv dse_jinja_call_macro(struct dse_jinja_run *run, const struct dse_jv_callable *macro,
                                   const struct dse_jinja_args *args);
struct dse_jv dse_jinja_binary(struct dse_jinja_run *run, enum dse_jinja_op op, struct dse_jv a, struct dse_jv b);
struct dse_jv dse_jinja_negate(struct dse_jinja_run *run, struct dse_jv v);
/* Applies the filters of a block to its text. */
struct dse_jv dse_jinja_filter_text(struct dse_jinja_run *run, const struct dse_jinja_node *filters,
                                    struct dse_jv text);
bool dse_jinja_eval_args(struct dse_jinja_run *run, const struct dse_jinja_node *node, struct dse_jinja_args *args);

#endif
