/* SPDX-License-Identifier: Apache-2.0 */
/* The sections of the report's page: cmd_report_html.c has the page and its figures, cmd_report_sections.c the rest. */
#ifndef SYMMSHIM_CMD_REPORT_HTML_H
#define SYMMSHIM_CMD_REPORT_HTML_H

#include "tools/cmd_report.h"

/* Text of a log, which may hold anything. */
void html_text(FILE *file, const char *text);

/* A section with its heading, and its end. */
void html_open(FILE *file, const char *heading);
void html_close(FILE *file);

/* The table of ops. */
void html_ops(FILE *file, const struct report_op *ops);

/* Bars of the reasons why calls of all these ops stay plain, with what to do. */
void html_reasons(FILE *file, const struct report *report, const struct report_op *ops);

void html_alarm(FILE *file, const struct report *report);
void html_forecast(FILE *file, const struct report *report);
void html_observed(FILE *file, const struct report *report);
void html_timeline(FILE *file, const struct report *report);
void html_top(FILE *file, struct report *report);
void html_differences(FILE *file, const struct report *report);
void html_setup(FILE *file, const struct report *report);
void html_comms(FILE *file, const struct report *report);

#endif
