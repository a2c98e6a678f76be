/* SPDX-License-Identifier: Apache-2.0 */
/* What a 64-bit shared object needs, and whether it has NCCL or CUDA's runtime in it. Any bytes may be in the file. */
#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tools/cmd_doctor.h"

struct image {
  const unsigned char *bytes;
  size_t size;
};

/* `count` items of `each` bytes at an offset, or NULL where the file ends before. */
static const void *at(const struct image *image, uint64_t offset, uint64_t count, size_t each)
{
  uint64_t bytes;

  if (__builtin_mul_overflow(count, (uint64_t)each, &bytes) || offset > image->size || bytes > image->size - offset ||
      offset % 8 != 0)
    return NULL;
  return image->bytes + offset;
}

static const Elf64_Shdr *sections(const struct image *image, size_t *count)
{
  const Elf64_Ehdr *head = at(image, 0, 1, sizeof(*head));

  if (!head || memcmp(head->e_ident, ELFMAG, SELFMAG) != 0 || head->e_ident[EI_CLASS] != ELFCLASS64 ||
      head->e_shentsize != sizeof(Elf64_Shdr))
    return NULL;
  *count = head->e_shnum;
  return at(image, head->e_shoff, *count, sizeof(Elf64_Shdr));
}

/* A string of the table that a section links to; NULL when it does not end. */
static const char *string(const struct image *image, const Elf64_Shdr *all, size_t count, uint32_t link, uint64_t where)
{
  const Elf64_Shdr *table = link < count ? &all[link] : NULL;

  if (!table || table->sh_offset > image->size || table->sh_size > image->size - table->sh_offset ||
      where >= table->sh_size)
    return NULL;
  if (!memchr(image->bytes + table->sh_offset + where, '\0', table->sh_size - where))
    return NULL;
  return (const char *)image->bytes + table->sh_offset + where;
}

static void take_needed(const char *name, struct doctor_elf *elf)
{
  if (strncmp(name, "libnccl.so", 10) == 0)
    snprintf(elf->needed_nccl, sizeof(elf->needed_nccl), "%s", name);
  if (strncmp(name, "libcudart.so", 12) == 0 || strncmp(name, "libcudart-", 10) == 0)
    snprintf(elf->needed_cudart, sizeof(elf->needed_cudart), "%s", name);
}

static void read_dynamic(const struct image *image, const Elf64_Shdr *all, size_t count, const Elf64_Shdr *section,
                         struct doctor_elf *elf)
{
  const Elf64_Dyn *entries = at(image, section->sh_offset, section->sh_size / sizeof(*entries), sizeof(*entries));

  for (size_t i = 0; entries && i < section->sh_size / sizeof(*entries) && entries[i].d_tag != DT_NULL; i++) {
    const char *name =
        entries[i].d_tag == DT_NEEDED ? string(image, all, count, section->sh_link, entries[i].d_un.d_val) : NULL;

    if (name)
      take_needed(name, elf);
  }
}

static void read_symbols(const struct image *image, const Elf64_Shdr *all, size_t count, const Elf64_Shdr *section,
                         struct doctor_elf *elf)
{
  const Elf64_Sym *symbols = at(image, section->sh_offset, section->sh_size / sizeof(*symbols), sizeof(*symbols));

  for (size_t i = 0; symbols && i < section->sh_size / sizeof(*symbols); i++) {
    const char *name;

    if (symbols[i].st_shndx == SHN_UNDEF)
      continue;
    name = string(image, all, count, section->sh_link, symbols[i].st_name);
    if (!name)
      continue;
    elf->has_nccl |= strcmp(name, "ncclAllGather") == 0;
    elf->has_cudart |= strcmp(name, "cudaMalloc") == 0;
  }
}

static int read_image(const struct image *image, struct doctor_elf *elf)
{
  size_t count = 0;
  const Elf64_Shdr *all = sections(image, &count);

  if (!all)
    return -ENOEXEC;
  for (size_t i = 0; i < count; i++) {
    if (all[i].sh_type == SHT_DYNAMIC)
      read_dynamic(image, all, count, &all[i], elf);
    else if (all[i].sh_type == SHT_DYNSYM)
      read_symbols(image, all, count, &all[i], elf);
  }
  return 0;
}

int doctor_elf_read(const char *path, struct doctor_elf *elf)
{
  int fd = open(path, O_RDONLY | O_CLOEXEC), rc;
  struct image image = {0};
  struct stat status;
  void *map;

  memset(elf, 0, sizeof(*elf));
  if (fd < 0)
    return -errno;
  rc = fstat(fd, &status) < 0 ? -errno : 0;
  map = rc == 0 && status.st_size > 0 ? mmap(NULL, (size_t)status.st_size, PROT_READ, MAP_PRIVATE, fd, 0) : MAP_FAILED;
  close(fd);
  if (map == MAP_FAILED)
    return rc < 0 ? rc : -ENOEXEC;
  image.bytes = map;
  image.size = (size_t)status.st_size;
  rc = read_image(&image, elf);
  munmap(map, image.size);
  return rc;
}
