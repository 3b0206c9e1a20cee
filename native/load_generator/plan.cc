#include "native/load_generator/plan.h"

#include <algorithm>
#include <cstring>
#include <fstream>
#include <iterator>
#include <utility>

namespace millpond::load_generator {
namespace {

constexpr char kMagic[8] = {'M', 'P', 'P', 'L', 'A', 'N', '0', '2'};

// The head of the file that loadtest/plan/plan.py packs, with numbers in this machine's byte order.
// The offsets follow, then the payload numbers, the payloads' sizes, and the payloads.
struct Header {
  char magic[8];
  int64_t request_count;
  int64_t payload_count;
  int64_t channel_count;
  int64_t deadline_ns;
  int64_t realtime_priority;
  int64_t kept_reply_bytes_max;
  int64_t in_flight_max;
};

// Takes values from the front of a file's bytes, and records if any were missing.
class Cursor {
 public:
  explicit Cursor(const std::string& bytes) : bytes_(bytes) {}

  template <typename T>
  void Take(T* value) {
    Copy(value, sizeof(T));
  }
  template <typename T>
  std::vector<T> TakeVector(int64_t count) {
    // Checks the count before it allocates, so that a damaged count allocates nothing.
    const bool is_there = count >= 0 && static_cast<size_t>(count) <= LeftBytes() / sizeof(T);
    std::vector<T> values(is_there ? count : 0);
    has_all_ = has_all_ && is_there;
    Copy(values.data(), values.size() * sizeof(T));
    return values;
  }
  std::string TakeString(int64_t size_bytes) {
    const std::vector<char> bytes = TakeVector<char>(size_bytes);
    return {bytes.begin(), bytes.end()};
  }
  bool HasAllAndNoMore() const { return has_all_ && LeftBytes() == 0; }

 private:
  size_t LeftBytes() const { return bytes_.size() - position_; }
  void Copy(void* to, size_t size_bytes) {
    has_all_ = has_all_ && size_bytes <= LeftBytes();
    if (!has_all_ || size_bytes == 0) return;
    std::memcpy(to, bytes_.data() + position_, size_bytes);
    position_ += size_bytes;
  }

  const std::string& bytes_;
  size_t position_ = 0;
  bool has_all_ = true;
};

bool IsSound(const Header& header, const Plan& plan) {
  const auto is_payload = [&](int32_t payload) {
    return payload >= 0 && static_cast<size_t>(payload) < plan.payloads.size();
  };
  return header.channel_count > 0 && header.deadline_ns > 0 && header.kept_reply_bytes_max >= 0 &&
         header.in_flight_max >= 0 &&
         std::is_sorted(plan.offsets_ns.begin(), plan.offsets_ns.end()) &&
         std::all_of(plan.payload_of.begin(), plan.payload_of.end(), is_payload);
}

}  // namespace

base::StatusOr<Plan> ReadPlan(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return base::NotFound("plan '" + path + "' cannot be opened");
  const std::string bytes{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};

  Cursor cursor(bytes);
  Header header{};
  cursor.Take(&header);
  if (std::memcmp(header.magic, kMagic, sizeof kMagic) != 0) {
    return base::DataLoss("'" + path + "' is not a plan of this version of loadtest");
  }
  Plan plan;
  plan.offsets_ns = cursor.TakeVector<int64_t>(header.request_count);
  plan.payload_of = cursor.TakeVector<int32_t>(header.request_count);
  for (const int64_t size_bytes : cursor.TakeVector<int64_t>(header.payload_count)) {
    plan.payloads.push_back(cursor.TakeString(size_bytes));
  }
  plan.channel_count = header.channel_count;
  plan.deadline_ns = header.deadline_ns;
  plan.realtime_priority = header.realtime_priority;
  plan.kept_reply_bytes_max = header.kept_reply_bytes_max;
  plan.in_flight_max = header.in_flight_max;
  if (!cursor.HasAllAndNoMore() || !IsSound(header, plan)) {
    return base::DataLoss("plan '" + path + "' is damaged or cut short");
  }
  return plan;
}

}  // namespace millpond::load_generator
