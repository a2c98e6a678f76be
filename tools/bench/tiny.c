/* SPDX-License-Identifier: Apache-2.0 */
/* What `symmshim bench` loads 300 copies of: each of these names is looked up in every object that is global. */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

typedef void (*function)(void);

extern const function tiny_functions[];
#define REFER(name) (function) name
const function tiny_functions[] = {
    REFER(abort),   REFER(access),  REFER(atoi),     REFER(atol),    REFER(calloc),    REFER(chdir),
    REFER(clock),   REFER(close),   REFER(dup),      REFER(exit),    REFER(fclose),    REFER(feof),
    REFER(fflush),  REFER(fgetc),   REFER(fgets),    REFER(fopen),   REFER(fputc),     REFER(fputs),
    REFER(fread),   REFER(free),    REFER(fseek),    REFER(ftell),   REFER(fwrite),    REFER(getcwd),
    REFER(getenv),  REFER(getpid),  REFER(gmtime_r), REFER(isalnum), REFER(isalpha),   REFER(isdigit),
    REFER(isspace), REFER(isupper), REFER(lseek),    REFER(malloc),  REFER(memchr),    REFER(memcmp),
    REFER(memcpy),  REFER(memmove), REFER(memset),   REFER(mktime),  REFER(nanosleep), REFER(open_memstream),
    REFER(perror),  REFER(pipe),    REFER(putchar),  REFER(puts),    REFER(qsort),     REFER(rand),
    REFER(read),    REFER(realloc), REFER(remove),   REFER(rename),  REFER(sleep),     REFER(strcat),
    REFER(strchr),  REFER(strcmp),  REFER(strcpy),   REFER(strdup),  REFER(strlen),    REFER(strncmp),
    REFER(strstr),  REFER(strtol),  REFER(toupper),  REFER(write),
};
