#pragma once

#include <atomic>
#include <cstdint>
#include <string>

#include "native/base/status.h"

// The page that says, after a crash, which versions the threads of this process were running or
// loading. A supervisor makes it, hands its descriptor in, and reads it when the process has died.
//
// Theory of operation. The page has a slot for each thread that runs or loads versions, and a row
// for each version. A thread stores the number of a row in its slot before a run and restores the
// old number after it: two relaxed stores into a cache line of its own. The handler of a crash
// stores the id of the crashing thread, which the supervisor finds among the slots. A thread
// without a slot, such as one of a TensorFlow pool, is not found. Then every version in a slot is
// suspected.
//
// serving/supervisor/crash_page.py writes the header and reads the page. Both files hold the
// layout.
namespace millpond::base {

inline constexpr uint64_t kCrashPageMagic = 0x3165676150687343;  // "CshPage1"
inline constexpr uint32_t kCrashThreadCount = 1024;
inline constexpr uint32_t kCrashRowCount = 8192;
// The stored id of a thread that a signal of another process has ended: no version is to blame.
inline constexpr uint32_t kCrashFromOutside = 0xffffffff;
// The bit of a slot whose thread loads the version.
inline constexpr uint32_t kCrashLoadingBit = 0x80000000;

struct CrashHeader {
  uint64_t magic;
  uint32_t thread_count;
  uint32_t row_count;
  std::atomic<uint32_t> crashed_thread_id;
  std::atomic<uint32_t> signal;
  char padding[40];
};

struct alignas(64) CrashSlot {
  std::atomic<uint32_t> thread_id;  // 0: free
  std::atomic<uint32_t> mark;       // 0, or the number of a row with or without kCrashLoadingBit
};

// Row n is the version of the mark n + 1.
struct CrashRowContent {
  int64_t version;
  std::atomic<uint32_t> is_used;
  uint32_t name_bytes;
  char name[496];
};

struct CrashPageContent {
  CrashHeader header;
  CrashSlot slots[kCrashThreadCount];
  CrashRowContent rows[kCrashRowCount];
};
static_assert(sizeof(CrashHeader) == 64 && sizeof(CrashSlot) == 64);
static_assert(sizeof(CrashRowContent) == 512);

// Maps the page for the rest of the process, and handles SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT
// and SIGTRAP. The handler records the thread, restores the handler that was there before, and
// raises the signal again. So core dumps and Python's faulthandler work as without it. Returns
// FAILED_PRECONDITION if the file is not such a page, or if a page is open. `descriptor` may be
// closed afterwards. Call it before the first load.
Status OpenCrashPage(int descriptor);

// The row of one version; empty if no page is open, if the rows are used up, or if the name has
// more than 496 bytes. Such a version is never suspected.
//
// Thread: made and destroyed by a thread that loads or unloads, under a lock. Any thread may read
// it.
class CrashRow {
 public:
  CrashRow(const std::string& name, int64_t version);
  ~CrashRow();
  CrashRow(const CrashRow&) = delete;
  CrashRow& operator=(const CrashRow&) = delete;

  uint32_t mark() const { return mark_; }

 private:
  const uint32_t mark_;
};

// Returns the calling thread's slot for marks. If the slots are used up, returns a cell that
// nothing reads.
std::atomic<uint32_t>* LeaseCrashSlot(std::atomic<uint32_t>** mine);

inline std::atomic<uint32_t>& ThisCrashSlot() {
  static thread_local std::atomic<uint32_t>* mine = nullptr;
  return mine != nullptr ? *mine : *LeaseCrashSlot(&mine);
}

// Returns the mark of the calling thread; 0 if it has none.
inline uint32_t ThisCrashMark() { return ThisCrashSlot().load(std::memory_order_relaxed); }

// Marks in the scope that the calling thread runs or loads the version of a row. Scopes may nest.
// Cost: two relaxed stores; a branch without a page.
class CrashScope {
 public:
  static CrashScope Running(const CrashRow& row) { return CrashScope(row.mark()); }
  static CrashScope Loading(const CrashRow& row) {
    return CrashScope(row.mark() == 0 ? 0 : row.mark() | kCrashLoadingBit);
  }
  // Works for a thread with that mark (ThisCrashMark), which waits until the scope ends.
  static CrashScope For(uint32_t mark) { return CrashScope(mark); }
  ~CrashScope() {
    if (slot_ == nullptr) return;
    std::atomic_signal_fence(std::memory_order_seq_cst);
    slot_->store(before_, std::memory_order_relaxed);
  }
  CrashScope(const CrashScope&) = delete;
  CrashScope& operator=(const CrashScope&) = delete;

 private:
  explicit CrashScope(uint32_t mark) : slot_(mark == 0 ? nullptr : &ThisCrashSlot()) {
    if (slot_ == nullptr) return;
    before_ = slot_->load(std::memory_order_relaxed);
    slot_->store(mark, std::memory_order_relaxed);
    // The handler of a crash in the scope sees the mark: the compiler moves nothing over the fence.
    std::atomic_signal_fence(std::memory_order_seq_cst);
  }

  std::atomic<uint32_t>* const slot_;
  uint32_t before_ = 0;
};

}  // namespace millpond::base
