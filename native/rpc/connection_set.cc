#include "native/rpc/connection_set.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

namespace millpond::rpc {
namespace {

constexpr uint32_t kConnectionEvents = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET;

uint64_t KeyOf(uint32_t place, uint32_t generation) {
  return static_cast<uint64_t>(generation) << 32U | place;
}
uint32_t PlaceOf(uint64_t key) { return static_cast<uint32_t>(key); }
uint32_t GenerationOf(uint64_t key) { return static_cast<uint32_t>(key >> 32U); }

}  // namespace

ConnectionSet::~ConnectionSet() {
  for (const int fd : {epoll_fd_, wake_fd_}) {
    if (fd >= 0) close(fd);
  }
}

base::Status ConnectionSet::Open() {
  if (epoll_fd_ >= 0) return {};
  epoll_fd_ = epoll_create1(EPOLL_CLOEXEC);
  wake_fd_ = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
  if (epoll_fd_ < 0 || wake_fd_ < 0) {
    return {base::Code::kUnavailable, std::string("cannot listen: ") + std::strerror(errno)};
  }
  epoll_event wake{};
  wake.events = EPOLLIN | EPOLLET;
  wake.data.u64 = kWakeKey;
  epoll_ctl(epoll_fd_, EPOLL_CTL_ADD, wake_fd_, &wake);
  return {};
}

void ConnectionSet::Wake() {
  const uint64_t one = 1;
  (void)!write(wake_fd_, &one, sizeof one);
}

void ConnectionSet::AddListener(int fd, uint64_t key) {
  epoll_event event{};
  event.events = EPOLLIN | EPOLLEXCLUSIVE;
  event.data.u64 = key;
  epoll_ctl(epoll_fd_, EPOLL_CTL_ADD, fd, &event);
}

void ConnectionSet::RemoveListener(int fd) { epoll_ctl(epoll_fd_, EPOLL_CTL_DEL, fd, nullptr); }

bool ConnectionSet::Add(std::shared_ptr<Connection> connection) {
  const int fd = connection->fd();
  epoll_event event{};
  event.events = kConnectionEvents;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    uint32_t place = static_cast<uint32_t>(places_.size());
    if (free_places_.empty()) {
      places_.emplace_back();
    } else {
      place = free_places_.back();
      free_places_.pop_back();
    }
    event.data.u64 = KeyOf(place, places_[place].generation);
    connection->set_key(event.data.u64);
    places_[place].connection = std::move(connection);
    count_.fetch_add(1, std::memory_order_relaxed);
  }
  return epoll_ctl(epoll_fd_, EPOLL_CTL_ADD, fd, &event) == 0;
}

std::shared_ptr<Connection> ConnectionSet::Find(uint64_t key) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const uint32_t place = PlaceOf(key);
  if (place >= places_.size() || places_[place].generation != GenerationOf(key)) return nullptr;
  return places_[place].connection;
}

std::shared_ptr<Connection> ConnectionSet::Remove(uint64_t key) {
  const std::lock_guard<std::mutex> lock(mutex_);
  Place& place = places_[PlaceOf(key)];
  if (place.generation != GenerationOf(key)) return nullptr;
  // So no connection's key is ever that of a listener or of the wake-up.
  place.generation = (place.generation + 1) % INT32_MAX;
  free_places_.push_back(PlaceOf(key));
  count_.fetch_sub(1, std::memory_order_relaxed);
  epoll_ctl(epoll_fd_, EPOLL_CTL_DEL, place.connection->fd(), nullptr);
  return std::move(place.connection);
}

void ConnectionSet::ArmAgain(const Connection& connection) {
  epoll_event event{};
  event.events = kConnectionEvents;
  event.data.u64 = connection.key();
  epoll_ctl(epoll_fd_, EPOLL_CTL_MOD, connection.fd(), &event);
}

std::vector<std::shared_ptr<Connection>> ConnectionSet::All(const ServerShared* whose) {
  std::vector<std::shared_ptr<Connection>> all;
  const std::lock_guard<std::mutex> lock(mutex_);
  for (const Place& place : places_) {
    if (place.connection == nullptr) continue;
    if (whose == nullptr || place.connection->shared() == whose) all.push_back(place.connection);
  }
  return all;
}

}  // namespace millpond::rpc
