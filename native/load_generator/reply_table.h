#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace millpond::load_generator {

// The distinct replies of a run. A model answers the same payload with the same bytes. So a run of
// any length has a few replies for each payload and version. Each of them is checked once, after
// the run.
//
// Used by one thread at a time. It takes at most `kept_bytes_max` bytes, whatever the server sends.
class ReplyTable {
 public:
  struct Reply {
    int32_t payload;
    // A gRPC status code. If it is not OK, `bytes` is the status's message.
    int32_t code;
    std::string bytes;
  };

  // The number of a reply that there was no room to keep.
  static constexpr int32_t kNotKept = -1;

  ReplyTable(size_t payload_count, int64_t kept_bytes_max)
      : seen_(payload_count), left_bytes_(kept_bytes_max) {}

  // Returns the number of this reply, and keeps the reply if it is new.
  int32_t Find(int32_t payload, int32_t code, std::string_view bytes) {
    std::vector<int32_t>& seen = seen_[payload];
    // Searches from the newest reply on, because the replies of the version that serves now are at
    // the end.
    for (auto number = seen.rbegin(); number != seen.rend(); ++number) {
      const Reply& reply = replies_[*number];
      if (reply.code == code && reply.bytes == bytes) return *number;
    }
    const auto size_bytes = static_cast<int64_t>(bytes.size() + sizeof(Reply));
    if (size_bytes > left_bytes_) return kNotKept;
    left_bytes_ -= size_bytes;
    seen.push_back(static_cast<int32_t>(replies_.size()));
    replies_.push_back({payload, code, std::string(bytes)});
    return seen.back();
  }

  const std::deque<Reply>& replies() const { return replies_; }

 private:
  std::deque<Reply> replies_;
  // The numbers of the replies of each payload, oldest first.
  std::vector<std::vector<int32_t>> seen_;
  int64_t left_bytes_;
};

}  // namespace millpond::load_generator
