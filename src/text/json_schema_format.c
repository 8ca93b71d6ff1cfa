/* `format` as patterns (regex_grammar.h). Every text that a pattern matches is valid; where a format lets rare forms
 * through that no program writes (comments in addresses, leap seconds), the pattern leaves them out.
 */
#include "text/json_schema_internal.h"

#include <string.h>

/* Dates: years from 0001 on, the days that each month has, 29 February in leap years only (RFC 3339). */
#define YEAR      "(?:000[1-9]|00[1-9]\\d|0[1-9]\\d{2}|[1-9]\\d{3})"
#define LEAP_YEAR "(?:\\d{2}(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00)"
#define DAY                                                                                                            \
    "(?:(?:0[13578]|1[02])-(?:0[1-9]|[12]\\d|3[01])|(?:0[469]|11)-(?:0[1-9]|[12]\\d|30)|02-(?:0[1-9]|1\\d|2[0-8]))"
#define DATE   "(?:" YEAR "-" DAY "|" LEAP_YEAR "-02-29)"
#define CLOCK  "(?:[01]\\d|2[0-3]):[0-5]\\d"
#define TIME   CLOCK ":[0-5]\\d(?:\\.\\d{1,9})?(?:Z|[+-]" CLOCK ")"
#define OCTET  "(?:25[0-5]|2[0-4]\\d|1\\d{2}|[1-9]?\\d)"
#define IPV4   OCTET "(?:\\." OCTET "){3}"
#define HEX    "[0-9a-fA-F]"
#define H16    HEX "{1,4}"
#define LABEL  "[a-zA-Z0-9](?:[a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?"
#define DOMAIN LABEL "(?:\\." LABEL "){0,2}"
#define ATEXT  "[a-zA-Z0-9!#$%&'*+/=?^_`{|}~-]"
#define UCHAR  "(?:[A-Za-z0-9._~!$&'()*+,;=:@-]|%" HEX "{2})"

#define IPV6                                                                                                           \
    "(?:(?:" H16 ":){7}" H16 "|(?:" H16 ":){6}" IPV4 "|::(?:" H16 ":){0,5}(?:" H16 "|" IPV4 ")|::"                     \
    "|" H16 "::(?:" H16 ":){0,4}(?:" H16 "|" IPV4 ")"                                                                  \
    "|(?:" H16 ":){1}" H16 "::(?:" H16 ":){0,3}(?:" H16 "|" IPV4 ")"                                                   \
    "|(?:" H16 ":){2}" H16 "::(?:" H16 ":){0,2}(?:" H16 "|" IPV4 ")"                                                   \
    "|(?:" H16 ":){3}" H16 "::(?:" H16 ":){0,1}(?:" H16 "|" IPV4 ")"                                                   \
    "|(?:" H16 ":){4}" H16 "::(?:" H16 "|" IPV4 ")"                                                                    \
    "|(?:" H16 ":){5}" H16 "::" H16 "|(?:" H16 ":){0,6}" H16 "::)"

#define DURATION                                                                                                       \
    "P(?:\\d{1,9}W|(?:\\d{1,9}Y(?:\\d{1,9}M(?:\\d{1,9}D)?)?|\\d{1,9}M(?:\\d{1,9}D)?|\\d{1,9}D)(?:" DURATION_TIME       \
    ")?|" DURATION_TIME ")"
#define DURATION_TIME "T(?:\\d{1,9}H(?:\\d{1,9}M(?:\\d{1,9}S)?)?|\\d{1,9}M(?:\\d{1,9}S)?|\\d{1,9}S)"

static const struct {
    const char *format, *pattern;
} formats[] = {
    {"date", "^" DATE "$"},
    {"time", "^" TIME "$"},
    {"date-time", "^" DATE "T" TIME "$"},
    {"duration", "^" DURATION "$"},
    {"uuid", "^" HEX "{8}-" HEX "{4}-" HEX "{4}-" HEX "{4}-" HEX "{12}$"},
    {"ipv4", "^" IPV4 "$"},
    {"ipv6", "^" IPV6 "$"},
    {"hostname", "^" DOMAIN "$"},
    {"email", "^" ATEXT "{1,20}(?:\\." ATEXT "{1,20}){0,2}@" DOMAIN "$"},
    /* scheme, authority without user, path, query, fragment (RFC 3986) */
    {"uri", "^[A-Za-z][A-Za-z0-9+.-]{0,30}:(?://" DOMAIN "(?::\\d{1,5})?(?:/" UCHAR "*)*|" UCHAR "+(?:/" UCHAR
            "*)*)(?:\\?(?:" UCHAR "|[/?])*)?(?:#(?:" UCHAR "|[/?])*)?$"},
};

const char *dse_schema_format_pattern(const char *format)
{
    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++)
        if (strcmp(formats[i].format, format) == 0) return formats[i].pattern;
    return NULL;
}
