#include "native/memory/slab.h"

#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <string>

namespace millpond::memory {
namespace {

std::string ErrnoText() {
  std::array<char, 128> buffer{};
  return strerror_r(errno, buffer.data(), buffer.size());
}

base::Status RefusedReservation(size_t bytes) {
  return {base::Code::kResourceExhausted,
          "cannot reserve " + std::to_string(bytes) + " bytes of addresses for a version's slab: " +
              ErrnoText() + "; raise the limit of virtual memory (ulimit -v, vm.max_map_count)"};
}

bool IsResident(unsigned char page) { return (page & 1) != 0; }

void Unmap(std::byte* start, size_t bytes) {
  if (bytes > 0) munmap(start, bytes);
}

// Moves one unit of memory. If the system refuses, `to` is still mapped afterwards: the call may
// have unmapped it before it failed. Then no other mapping can be in its place but one that another
// thread made in this very moment, and that mapping stays.
bool MoveUnit(std::byte* from, std::byte* to) {
  const void* const moved =
      mremap(from, kSlabUnitBytes, kSlabUnitBytes, MREMAP_MAYMOVE | MREMAP_FIXED, to);
  if (moved != MAP_FAILED) return true;
  mmap(to, kSlabUnitBytes, PROT_READ | PROT_WRITE,
       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0);
  return false;
}

}  // namespace

base::StatusOr<std::unique_ptr<Slab>> Slab::Reserve(size_t bytes) {
  const size_t reserved_bytes = RoundUp(std::max<size_t>(bytes, 1), kSlabUnitBytes);
  const size_t mapped_bytes = reserved_bytes + kSlabUnitBytes;
  if (reserved_bytes < bytes || mapped_bytes < reserved_bytes) {
    errno = ENOMEM;
    return RefusedReservation(bytes);
  }
  void* mapping = mmap(nullptr, mapped_bytes, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapping == MAP_FAILED) return RefusedReservation(reserved_bytes);
  auto* const mapped = static_cast<std::byte*>(mapping);
  const auto address = reinterpret_cast<uintptr_t>(mapping);
  const size_t lead_bytes = RoundUp(address, kSlabUnitBytes) - address;
  std::byte* const start = mapped + lead_bytes;
  Unmap(mapped, lead_bytes);
  Unmap(start + reserved_bytes, mapped_bytes - lead_bytes - reserved_bytes);
  madvise(start, reserved_bytes, MADV_HUGEPAGE);
  return std::unique_ptr<Slab>(new Slab(start, reserved_bytes));
}

Slab::~Slab() {
  if (!is_left_mapped_) Unmap(start_, reserved_bytes_);
}

// Calls `visit` with the offset of each part of the slab and a vector of mincore for its pages.
template <typename Visit>
void Slab::VisitPages(const Visit& visit) const {
  std::array<unsigned char, 4096> pages{};  // 16 MiB a call.
  for (size_t offset = 0; offset < reserved_bytes_; offset += pages.size() * kPageBytes) {
    const size_t bytes = std::min(pages.size() * kPageBytes, reserved_bytes_ - offset);
    if (mincore(start_ + offset, bytes, pages.data()) != 0) continue;
    visit(offset, pages.data(), bytes / kPageBytes);
  }
}

size_t Slab::ResidentBytes() const {
  size_t page_count = 0;
  VisitPages([&](size_t /*offset*/, const unsigned char* pages, size_t count) {
    page_count += std::count_if(pages, pages + count, IsResident);
  });
  return page_count * kPageBytes;
}

size_t Slab::ResidentEnd() const {
  size_t end = 0;
  VisitPages([&](size_t offset, const unsigned char* pages, size_t count) {
    while (count > 0 && !IsResident(pages[count - 1])) --count;
    if (count > 0) end = offset + count * kPageBytes;
  });
  return end;
}

void Slab::PreFault(size_t offset, size_t bytes) {
  if (is_sealed() || offset >= reserved_bytes_) return;
  const size_t end = offset + std::min(bytes, reserved_bytes_ - offset);
  for (size_t page = offset & ~(kPageBytes - 1); page < end; page += kPageBytes) {
    // An atomic OR with 0 is a write for the processor, and does not change a block that lies
    // there. MADV_POPULATE_WRITE would hold the process's lock of mappings, which a request's mmap
    // needs. This thread has idle priority and may lose its core while it holds the lock. A page
    // fault locks only the slab's mapping.
    auto* const first = reinterpret_cast<volatile unsigned char*>(start_ + page);
    __atomic_fetch_or(first, static_cast<unsigned char>(0), __ATOMIC_RELAXED);
  }
}

void Slab::ReturnPages(size_t offset, size_t bytes) {
  if (offset >= reserved_bytes_) return;
  const size_t first = RoundUp(offset, kPageBytes);
  const size_t end = (offset + std::min(bytes, reserved_bytes_ - offset)) & ~(kPageBytes - 1);
  if (first < end) madvise(start_ + first, end - first, MADV_DONTNEED);
}

size_t Slab::MoveTail(size_t end, size_t bytes, Slab* to, size_t to_offset) {
  const size_t begin = end - bytes;
  Cut(end);
  size_t moved_bytes = 0;
  while (moved_bytes < bytes &&
         MoveUnit(start_ + begin + moved_bytes, to->start_ + to_offset + moved_bytes)) {
    moved_bytes += kSlabUnitBytes;
  }
  if (moved_bytes == 0) return 0;
  // A moved unit leaves a hole, in which the system may map other memory at any moment.
  Unmap(start_ + begin + moved_bytes, bytes - moved_bytes);
  reserved_bytes_ = begin;
  return moved_bytes;
}

void Slab::Cut(size_t end) {
  Unmap(start_ + end, reserved_bytes_ - end);
  reserved_bytes_ = end;
}

base::Status Slab::Seal() { return Protect(PROT_READ, true); }
base::Status Slab::Unseal() { return Protect(PROT_READ | PROT_WRITE, false); }

base::Status Slab::Protect(int protection, bool is_sealed) {
  for (size_t offset = 0; offset < reserved_bytes_; offset += kSlabUnitBytes) {
    if (mprotect(start_ + offset, kSlabUnitBytes, protection) == 0) continue;
    base::Status status =
        base::Internal("cannot change the protection of a slab of " +
                       std::to_string(reserved_bytes_) + " bytes: " + ErrnoText());
    // Never leaves a part of the slab sealed: makes all of it writable again. If even that fails,
    // the slab counts as sealed.
    is_sealed_ = mprotect(start_, reserved_bytes_, PROT_READ | PROT_WRITE) != 0;
    return status;
  }
  is_sealed_ = is_sealed;
  return {};
}

}  // namespace millpond::memory
