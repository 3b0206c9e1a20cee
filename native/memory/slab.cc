#include "native/memory/slab.h"

#include <linux/mempolicy.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

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

// A bit for each NUMA node of InterleaveSlabs. Empty: memory comes from the node that touches it.
using NodeMask = std::vector<unsigned long>;
NodeMask slab_nodes;

// Glibc has no function for the system call, and libnuma is not needed for one call.
bool Interleave(std::byte* start, size_t bytes, const NodeMask& nodes) {
  constexpr size_t kBits = 8 * sizeof(unsigned long);
  return syscall(SYS_mbind, start, bytes, MPOL_INTERLEAVE, nodes.data(), nodes.size() * kBits + 1,
                 0) == 0;
}

void ChoosePages(std::byte* start, size_t bytes) {
  madvise(start, bytes, MADV_HUGEPAGE);
  if (!slab_nodes.empty()) (void)Interleave(start, bytes, slab_nodes);
}

bool IsResident(unsigned char page) { return (page & 1) != 0; }

void Unmap(std::byte* start, size_t bytes) {
  if (bytes > 0) munmap(start, bytes);
}

// Returns true if the whole unit is memory that a Slab has mapped, because no other mapping is
// advised to have huge pages. On a kernel without huge pages it is never true. Reads the whole list
// of mappings, so it is only for a unit that may be lost.
bool IsSlabMemory(const std::byte* unit) {
  const auto begin = reinterpret_cast<uintptr_t>(unit);
  std::ifstream mappings("/proc/self/smaps");
  bool has_unit = false;
  for (std::string line; std::getline(mappings, line);) {
    std::istringstream fields(line);
    uintptr_t first = 0;
    uintptr_t end = 0;
    char dash = 0;
    if (fields >> std::hex >> first >> dash >> end && dash == '-') {
      has_unit = first <= begin && begin + kSlabUnitBytes <= end;
    } else if (has_unit && line.rfind("VmFlags:", 0) == 0) {
      return line.find(" hg") != std::string::npos;
    }
  }
  return false;
}

enum class UnitMove {
  kMoved,
  kRefused,  // `to` is mapped as before.
  kLost,     // `to` is a hole, or has memory of another owner.
};

// Moves one unit of memory. If the system refuses, the call may have unmapped `to` before it
// failed. Then `to` is mapped again, unless another thread has mapped memory there in this very
// moment, or the system refuses that too.
UnitMove MoveUnit(std::byte* from, std::byte* to) {
  const void* const moved =
      mremap(from, kSlabUnitBytes, kSlabUnitBytes, MREMAP_MAYMOVE | MREMAP_FIXED, to);
  if (moved != MAP_FAILED) return UnitMove::kMoved;
  void* const repaired =
      mmap(to, kSlabUnitBytes, PROT_READ | PROT_WRITE,
           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0);
  if (repaired == to) {
    ChoosePages(to, kSlabUnitBytes);
    return UnitMove::kRefused;
  }
  // A kernel that does not have MAP_FIXED_NOREPLACE maps another address.
  if (repaired != MAP_FAILED) munmap(repaired, kSlabUnitBytes);
  return IsSlabMemory(to) ? UnitMove::kRefused : UnitMove::kLost;
}

}  // namespace

bool InterleaveSlabs(const std::vector<int>& nodes) {
  constexpr size_t kBits = 8 * sizeof(unsigned long);
  NodeMask mask;
  for (const int node : nodes) {
    const auto number = static_cast<size_t>(node);
    if (number / kBits >= mask.size()) mask.resize(number / kBits + 1);
    mask[number / kBits] |= 1UL << number % kBits;
  }
  if (!mask.empty()) {
    const auto trial = Slab::Reserve(kSlabUnitBytes);
    if (!trial.ok() || !Interleave(trial.value()->start(), kSlabUnitBytes, mask)) return false;
  }
  slab_nodes = std::move(mask);
  return true;
}

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
  ChoosePages(start, reserved_bytes);
  return std::unique_ptr<Slab>(new Slab(start, reserved_bytes));
}

Slab::~Slab() {
  if (is_left_mapped_) return;  // the pins end with it, and nothing is left behind
  Cut(0);
}

// Calls `visit` with the offset of each part of the slab before `end`, and a vector of mincore for
// its pages.
template <typename Visit>
void Slab::VisitPages(size_t end, const Visit& visit) const {
  end = RoundUp(std::min(end, reserved_bytes_), kPageBytes);
  std::array<unsigned char, 4096> pages{};  // 16 MiB a call.
  for (size_t offset = 0; offset < end; offset += pages.size() * kPageBytes) {
    const size_t bytes = std::min(pages.size() * kPageBytes, end - offset);
    if (mincore(start_ + offset, bytes, pages.data()) != 0) continue;
    visit(offset, pages.data(), bytes / kPageBytes);
  }
}

size_t Slab::ResidentBytes(size_t end) const {
  size_t page_count = 0;
  VisitPages(end, [&](size_t /*offset*/, const unsigned char* pages, size_t count) {
    page_count += std::count_if(pages, pages + count, IsResident);
  });
  return page_count * kPageBytes;
}

size_t Slab::ResidentEnd() const {
  size_t end = 0;
  VisitPages(reserved_bytes_, [&](size_t offset, const unsigned char* pages, size_t count) {
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
  if (first >= end) return;
  size_t returned = first;
  if (!pins_.CutBack(first)) {
    returned = std::clamp(StuckEnd(), first, end);
    std::memset(start_ + first, 0, returned - first);
  }
  madvise(start_ + returned, end - returned, MADV_DONTNEED);
}

void Slab::SetSmallPagesAtStart(bool is_small) {
  if (is_small == has_small_pages_ || reserved_bytes_ == 0) return;
  has_small_pages_ = is_small;
  madvise(start_, kSlabUnitBytes, is_small ? MADV_NOHUGEPAGE : MADV_HUGEPAGE);
}

size_t Slab::MoveTail(size_t end, size_t bytes, Slab* to, size_t to_offset) {
  const size_t begin = end - bytes;
  if (!pins_.CutBack(begin) || !to->pins_.CutBack(to_offset)) return 0;
  Cut(end);
  size_t moved_bytes = 0;
  UnitMove move = UnitMove::kMoved;
  while (moved_bytes < bytes && move == UnitMove::kMoved) {
    move = MoveUnit(start_ + begin + moved_bytes, to->start_ + to_offset + moved_bytes);
    if (move == UnitMove::kMoved) moved_bytes += kSlabUnitBytes;
  }
  if (move == UnitMove::kLost) to->LoseUnit(to_offset + moved_bytes);
  if (moved_bytes == 0) return 0;
  // A moved unit leaves a hole, in which the system may map other memory at any moment.
  Unmap(start_ + begin + moved_bytes, bytes - moved_bytes);
  reserved_bytes_ = begin;
  return moved_bytes;
}

// Only the destructor may find pages that are still to be unpinned: they are left behind.
void Slab::Cut(size_t end) {
  size_t unmapped = end;
  if (!pins_.CutBack(end)) unmapped = std::clamp(StuckEnd(), end, reserved_bytes_);
  left_->start = start_ + end;
  left_->bytes = unmapped - end;
  Unmap(start_ + unmapped, reserved_bytes_ - unmapped);
  reserved_bytes_ = end;
}

Slab::LeftPages::~LeftPages() { Unmap(start, bytes); }

size_t Slab::StuckEnd() const { return RoundUp(pins_.stuck_end(), kPageBytes); }

// Ends the slab before a unit that it does not own any more. Leaves that unit as it is.
// Its pages from `offset` on are not pinned, because MoveTail has unpinned them.
void Slab::LoseUnit(size_t offset) {
  Cut(offset + kSlabUnitBytes);
  reserved_bytes_ = offset;
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
