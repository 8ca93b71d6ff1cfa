/* What is told when a mapped file becomes shorter under the running program. */
#ifndef DSE_CLI_LOST_FILE_H
#define DSE_CLI_LOST_FILE_H

/* From now on a touch of mapped bytes that are gone ends the process with a sentence and exit code 4. */
void dse_lost_file_watch(void);

#endif
