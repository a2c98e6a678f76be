/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/preload/job.h"

int main(int argc, char **argv)
{
  return job_main(argc, argv);
}
