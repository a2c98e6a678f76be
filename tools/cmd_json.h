/* SPDX-License-Identifier: Apache-2.0 */
/* The commands' JSON output. */
#ifndef SYMMSHIM_CMD_JSON_H
#define SYMMSHIM_CMD_JSON_H

#include <jansson.h>

/* A path as a JSON string; bytes outside ASCII become '?' where they are no UTF-8. */
json_t *cmd_json_path(const char *path);

/* Prints `root` on stdout and drops it. */
void cmd_print_json(json_t *root);

#endif
