#pragma once

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdint>
#include <functional>
#include <string>

#include "native/base/crash_page.h"

namespace millpond::base {

// The crash page of a process that a test makes, and that ends by a crash.
class CrashedProcess {
 public:
  CrashedProcess() : descriptor_(memfd_create("crash_page", MFD_CLOEXEC)) {
    EXPECT_EQ(ftruncate(descriptor_, sizeof(CrashPageContent)), 0);
    void* const mapped =
        mmap(nullptr, sizeof(CrashPageContent), PROT_READ | PROT_WRITE, MAP_SHARED, descriptor_, 0);
    page_ = static_cast<CrashPageContent*>(mapped);
    page_->header.magic = kCrashPageMagic;
    page_->header.thread_count = kCrashThreadCount;
    page_->header.row_count = kCrashRowCount;
  }
  ~CrashedProcess() {
    munmap(page_, sizeof(CrashPageContent));
    close(descriptor_);
  }
  CrashedProcess(const CrashedProcess&) = delete;
  CrashedProcess& operator=(const CrashedProcess&) = delete;

  CrashPageContent* page() { return page_; }
  int descriptor() const { return descriptor_; }

  // Calls `live` in a process of its own, with the page open. Returns the signal that ended it.
  int SignalOf(const std::function<void()>& live) {
    const pid_t child = fork();
    if (child == 0) {
      // A sanitizer's handler would turn the signal into an exit status.
      static_cast<void>(signal(SIGSEGV, SIG_DFL));
      if (OpenCrashPage(descriptor_).ok()) live();
      _exit(1);
    }
    int status = 0;
    waitpid(child, &status, 0);
    return WIFSIGNALED(status) ? WTERMSIG(status) : -WEXITSTATUS(status);
  }

  // Returns the version that the crashed thread ran as "name/version", with "+" if it loaded it.
  std::string Crashed() const {
    const uint32_t id = page_->header.crashed_thread_id.load();
    for (const CrashSlot& slot : page_->slots) {
      if (id != 0 && slot.thread_id.load() == id) return Text(slot.mark.load());
    }
    return "unknown";
  }

  std::string Text(uint32_t mark) const {
    if (mark == 0) return "none";
    const CrashRowContent& row = page_->rows[(mark & ~kCrashLoadingBit) - 1];
    return std::string(row.name, row.name_bytes) + "/" + std::to_string(row.version) +
           ((mark & kCrashLoadingBit) != 0 ? "+" : "");
  }

 private:
  const int descriptor_;
  CrashPageContent* page_;
};

}  // namespace millpond::base
