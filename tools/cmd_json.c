/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/cmd_json.h"

#include <stdlib.h>
#include <string.h>

json_t *cmd_json_path(const char *path)
{
  json_t *string = json_string(path);
  char *copy;

  if (string)
    return string;
  copy = strdup(path);
  for (char *c = copy; c && *c != '\0'; c++)
    if ((unsigned char)*c > 126)
      *c = '?';
  string = json_string(copy);
  free(copy);
  return string;
}

void cmd_print_json(json_t *root)
{
  json_dumpf(root, stdout, JSON_INDENT(2));
  putchar('\n');
  json_decref(root);
}
