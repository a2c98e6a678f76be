/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>

#include "tools/cmd.h"
#include "tools/cmd_bench_gpu.h"

const char *gpu_name_kind(const struct gpu_case *what, char *text, size_t size)
{
  snprintf(text, size, "%s%s%s %s", policy_op_word(what->op), what->op == POLICY_OP_all_gather ? "" : " ",
           what->op == POLICY_OP_all_gather ? "" : policy_redop_word(what->redop), policy_dtype_word(what->dtype));
  return text;
}

const char *gpu_name_case(const struct gpu_case *what, char *text, size_t size)
{
  char kind[40], bytes[32];

  snprintf(text, size, "%s of %s", gpu_name_kind(what, kind, sizeof(kind)),
           cmd_format_bytes(what->bytes, bytes, sizeof(bytes)));
  return text;
}

const char *gpu_name_way(const struct gpu_region *region, int way, char *text, size_t size)
{
  const struct gpu_child *child = &region->children[way >= GPU_HAND ? way - GPU_HAND : 0];

  if (way < GPU_HAND)
    snprintf(text, size, way == GPU_STOCK ? "stock NCCL" : "through the shim");
  else if (child->copy_engine)
    snprintf(text, size, "copy engine");
  else
    snprintf(text, size, "windows, %d CTAs", child->min_ctas);
  return text;
}
