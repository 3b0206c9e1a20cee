#include "native/base/crash_page.h"

#include <cerrno>
#include <csignal>
#include <cstring>
#include <mutex>

#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace millpond::base {
namespace {

constexpr int kCrashSignals[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGTRAP};
constexpr int kSignalCount = 65;

// Written before the handlers are installed, and not changed afterwards.
CrashPageContent* page = nullptr;
struct sigaction handlers_before[kSignalCount];

// The cell of threads without a slot. Its value means nothing.
std::atomic<uint32_t> unread_cell{0};

std::mutex rows_mutex;
uint32_t next_row = 0;  // the row at which the search for a free row begins

uint32_t ThreadId() { return static_cast<uint32_t>(syscall(SYS_gettid)); }

// Runs in a thread that may hold any lock, with a heap that may be damaged. No allocation, no
// logging, no thread-local variable: only system calls and the page.
void OnCrash(int signal, siginfo_t* info, void* /*context*/) {
  const int errno_before = errno;
  const bool is_sent = info->si_code <= 0;
  const bool is_from_outside = is_sent && info->si_pid != getpid();
  uint32_t none = 0;
  if (page->header.crashed_thread_id.compare_exchange_strong(
          none, is_from_outside ? kCrashFromOutside : ThreadId())) {
    page->header.signal.store(static_cast<uint32_t>(signal), std::memory_order_relaxed);
  }
  sigaction(signal, &handlers_before[signal], nullptr);
  // A fault comes again by itself, from the same instruction, when this handler returns. A signal
  // that was sent is sent again, and is delivered then.
  if (is_sent) syscall(SYS_tgkill, getpid(), ThreadId(), signal);
  errno = errno_before;
}

void InstallHandlers() {
  struct sigaction action = {};
  action.sa_sigaction = &OnCrash;
  // On the alternate stack if the thread has one: without it a stack overflow cannot be handled.
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  sigemptyset(&action.sa_mask);
  for (const int signal : kCrashSignals) sigaction(signal, &action, &handlers_before[signal]);
}

// Returns a thread's slot when the thread ends.
class SlotLease {
 public:
  SlotLease(CrashSlot* slot, std::atomic<uint32_t>** mine) : slot_(slot), mine_(mine) {}
  ~SlotLease() {
    *mine_ = &unread_cell;
    slot_->mark.store(0, std::memory_order_relaxed);
    slot_->thread_id.store(0, std::memory_order_release);
  }
  SlotLease(const SlotLease&) = delete;
  SlotLease& operator=(const SlotLease&) = delete;

 private:
  CrashSlot* const slot_;
  std::atomic<uint32_t>** const mine_;
};

uint32_t TakeRow(const std::string& name, int64_t version) {
  if (page == nullptr || name.size() > sizeof(CrashRowContent::name)) return 0;
  const std::lock_guard<std::mutex> lock(rows_mutex);
  for (uint32_t tried = 0; tried < kCrashRowCount; ++tried) {
    const uint32_t number = (next_row + tried) % kCrashRowCount;
    CrashRowContent& row = page->rows[number];
    if (row.is_used.load(std::memory_order_relaxed) != 0) continue;
    row.version = version;
    row.name_bytes = static_cast<uint32_t>(name.size());
    std::memcpy(row.name, name.data(), name.size());
    row.is_used.store(1, std::memory_order_release);
    // Freed rows are taken first, so that few pages of the file are ever touched.
    next_row = number + 1;
    return number + 1;
  }
  return 0;
}

}  // namespace

Status OpenCrashPage(int descriptor) {
  if (page != nullptr) return FailedPrecondition("a crash page is open already");
  struct stat found = {};
  if (fstat(descriptor, &found) != 0 || found.st_size != sizeof(CrashPageContent)) {
    return FailedPrecondition("the descriptor of the crash page has another size than " +
                              std::to_string(sizeof(CrashPageContent)) +
                              " bytes: supervisor and server are of different releases");
  }
  void* const mapped =
      mmap(nullptr, sizeof(CrashPageContent), PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
  if (mapped == MAP_FAILED) return FailedPrecondition("the crash page cannot be mapped");
  auto* const opened = static_cast<CrashPageContent*>(mapped);
  const CrashHeader& header = opened->header;
  if (header.magic != kCrashPageMagic || header.thread_count != kCrashThreadCount ||
      header.row_count != kCrashRowCount) {
    munmap(mapped, sizeof(CrashPageContent));
    return FailedPrecondition(
        "the crash page has another layout: supervisor and server are of different releases");
  }
  page = opened;
  InstallHandlers();
  return {};
}

CrashRow::CrashRow(const std::string& name, int64_t version) : mark_(TakeRow(name, version)) {}

CrashRow::~CrashRow() {
  if (mark_ == 0) return;
  const std::lock_guard<std::mutex> lock(rows_mutex);
  page->rows[mark_ - 1].is_used.store(0, std::memory_order_relaxed);
  if (mark_ - 1 < next_row) next_row = mark_ - 1;
}

std::atomic<uint32_t>* LeaseCrashSlot(std::atomic<uint32_t>** mine) {
  if (page == nullptr) return &unread_cell;
  const uint32_t id = ThreadId();
  for (CrashSlot& slot : page->slots) {
    uint32_t none = 0;
    if (slot.thread_id.load(std::memory_order_relaxed) != 0) continue;
    if (!slot.thread_id.compare_exchange_strong(none, id, std::memory_order_acquire)) continue;
    *mine = &slot.mark;
    static thread_local SlotLease lease(&slot, mine);
    return *mine;
  }
  *mine = &unread_cell;
  return *mine;
}

}  // namespace millpond::base
