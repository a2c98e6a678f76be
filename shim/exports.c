/* SPDX-License-Identifier: Apache-2.0 */
#include "shim/exports.h"

#include <dlfcn.h>
#include <elf.h>
#include <errno.h>
#include <link.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "shim/audit.h"
#include "shim/hooks.h"
#include "shim/log.h"

#define NAME(library, name, ret, params, args, missing) #name " "
/*
 * Besides what is hooked or called: NCCL's other functions from 2.18 to ABI_NCCL_NEWEST. None of them makes a
 * collective or a communicator. tests/versions holds the list against what libnccl has.
 */
static const char known[] = " " HOOKS(NAME)
    CALLED(NAME) "ncclCommCuDevice ncclCommGetUniqueId ncclCommMemStats ncclCommQueryProperties ncclCommResume "
                 "ncclDevCommCreate ncclDevCommDestroy ncclGetCftDeviceLeInfo ncclGetErrorString ncclGetLastError "
                 "ncclGetLsaDevicePointer ncclGetLsaMultimemDevicePointer ncclGetMultimemDeviceLeInfo "
                 "ncclGetMultimemDevicePointer ncclGetPeerDeviceLeInfo ncclGetPeerDevicePointer ncclGetUniqueId "
                 "ncclGinBarrierCreateRequirement ncclGinInboxA2ACreateRequirement ncclGinOutboxCreateRequirement "
                 "ncclLLA2ACalcSlots ncclLLA2ACreateRequirement ncclLsaBarrierCreateRequirement ncclMemAlloc "
                 "ncclMemFree ncclParamBind ncclParamDumpAll ncclParamGet ncclParamGetAllParameterKeys ncclParamGetI16 "
                 "ncclParamGetI32 ncclParamGetI64 ncclParamGetI8 ncclParamGetParameter ncclParamGetStr ncclParamGetU16 "
                 "ncclParamGetU32 ncclParamGetU64 ncclParamGetU8 ncclResetDebugInit ncclResetDebugInitInternal "
                 "ncclSetEncryption ncclTeamCft ncclTeamCftMultimem ncclTeamLsa ncclTeamRail ncclTeamRankToLsa "
                 "ncclTeamRankToWorld ncclTeamWorld ncclWinGetUserPtr ";
#undef NAME

/* What the loader needs of an object to find a name in it. */
struct table {
  const ElfW(Sym) * symbols;
  const char *strings;
  const uint32_t *gnu_hash;
  const uint32_t *hash;
};

struct search {
  uintptr_t inside;
  struct table table;
};

/* The loader has relocated these on most machines, and not on all (glibc: DL_RO_DYN_SECTION). */
static const void *at(const struct dl_phdr_info *info, ElfW(Addr) address)
{
  return (const void *)(address < info->dlpi_addr ? info->dlpi_addr + address : address);
}

static void read_dynamic(const struct dl_phdr_info *info, const ElfW(Dyn) * entry, struct table *table)
{
  for (; entry->d_tag != DT_NULL; entry++) {
    if (entry->d_tag == DT_SYMTAB)
      table->symbols = at(info, entry->d_un.d_ptr);
    else if (entry->d_tag == DT_STRTAB)
      table->strings = at(info, entry->d_un.d_ptr);
    else if (entry->d_tag == DT_GNU_HASH)
      table->gnu_hash = at(info, entry->d_un.d_ptr);
    else if (entry->d_tag == DT_HASH)
      table->hash = at(info, entry->d_un.d_ptr);
  }
}

static int find_object(struct dl_phdr_info *info, size_t size, void *data)
{
  struct search *search = data;
  const ElfW(Dyn) *dynamic = NULL;
  bool found = false;

  (void)size;
  for (int i = 0; i < info->dlpi_phnum; i++) {
    const ElfW(Phdr) *header = &info->dlpi_phdr[i];
    uintptr_t start = info->dlpi_addr + header->p_vaddr;

    if (header->p_type == PT_DYNAMIC)
      dynamic = (const ElfW(Dyn) *)start;
    found |= header->p_type == PT_LOAD && search->inside - start < header->p_memsz;
  }
  if (!found)
    return 0;
  if (dynamic)
    read_dynamic(info, dynamic, &search->table);
  return 1;
}

/* How many symbols there are; the newer table says it only by its longest chain. */
static uint32_t count_symbols(const struct table *table)
{
  const uint32_t *gnu = table->gnu_hash, *buckets, *chains;
  uint32_t last = 0;

  if (table->hash)
    return table->hash[1];
  if (!gnu)
    return 0;
  buckets = gnu + 4 + gnu[2] * (sizeof(ElfW(Addr)) / sizeof(uint32_t));
  chains = buckets + gnu[0];
  for (uint32_t i = 0; i < gnu[0]; i++)
    if (buckets[i] > last)
      last = buckets[i];
  if (last < gnu[1])
    return 0;
  while (!(chains[last - gnu[1]] & 1)) /* the end of a chain */
    last++;
  return last + 1;
}

/* ncclX, X an upper-case letter: as all of NCCL's functions for programs, and not the pncclX of its profilers. */
static bool is_function(const struct table *table, const ElfW(Sym) * symbol)
{
  const char *name = table->strings + symbol->st_name;
  unsigned char type = symbol->st_info & 0xf, binding = symbol->st_info >> 4;

  return symbol->st_shndx != SHN_UNDEF && type == STT_FUNC && (binding == STB_GLOBAL || binding == STB_WEAK) &&
         strncmp(name, "nccl", 4) == 0 && name[4] >= 'A' && name[4] <= 'Z';
}

static bool is_known(const char *name)
{
  size_t length = strlen(name);

  for (const char *found = strstr(known, name); found; found = strstr(found + 1, name))
    if (found[-1] == ' ' && found[length] == ' ')
      return true;
  return false;
}

struct exports exports_unknown(const void *inside)
{
  struct search search = {.inside = (uintptr_t)inside};
  const struct table *table = &search.table;
  struct exports unknown = {0};

  if (!inside || !dl_iterate_phdr(find_object, &search) || !table->symbols || !table->strings)
    return unknown;
  for (uint32_t i = 0, count = count_symbols(table); i < count; i++) {
    const char *name = table->strings + table->symbols[i].st_name;

    if (!is_function(table, &table->symbols[i]) || is_known(name))
      continue;
    if (unknown.count < EXPORTS_NAMED)
      unknown.names[unknown.count] = name;
    unknown.count++;
  }
  return unknown;
}

static void tell_functions(const struct exports *unknown, const char *path)
{
  char list[512];
  size_t used = 0, named = unknown->count < EXPORTS_NAMED ? unknown->count : EXPORTS_NAMED;

  list[0] = '\0';
  for (size_t i = 0; i < named && used < sizeof(list); i++)
    used += (size_t)snprintf(list + used, sizeof(list) - used, "%s%s", i > 0 ? ", " : "", unknown->names[i]);
  log_info("%s has %zu function%s that this symmshim does not know: %s%s; a collective made through such a one goes past "
           "it, unchanged and uncounted",
           path, unknown->count, unknown->count == 1 ? "" : "s", list, unknown->count > named ? ", ..." : "");
}

void exports_tell(const void *inside, int nccl_version)
{
  static bool told;
  int saved_errno = errno;
  struct exports unknown;
  const char *path;
  Dl_info info;

  if (__atomic_exchange_n(&told, true, __ATOMIC_RELAXED))
    return;
  unknown = exports_unknown(inside);
  path = inside && dladdr(inside, &info) && info.dli_fname ? info.dli_fname : "NCCL";
  if (nccl_version > ABI_NCCL_NEWEST)
    log_info("NCCL %d.%d.%d is newer than %d.%d.%d, the newest that this symmshim was checked against",
             nccl_version / 10000, nccl_version / 100 % 100, nccl_version % 100, ABI_NCCL_NEWEST / 10000,
             ABI_NCCL_NEWEST / 100 % 100, ABI_NCCL_NEWEST % 100);
  if (unknown.count > 0)
    tell_functions(&unknown, path);
  if (nccl_version > ABI_NCCL_NEWEST || unknown.count > 0)
    audit_library(path, nccl_version, ABI_NCCL_NEWEST, unknown.names, EXPORTS_NAMED, unknown.count);
  errno = saved_errno;
}
