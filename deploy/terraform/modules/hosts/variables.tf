variable "name" {
  description = "Of the group, and the beginning of its hosts' names."
  type        = string
}

variable "machine_type" {
  description = "Of each host."
  type        = string
}

variable "topology" {
  description = "Chips along each side of a TPU slice, as 4x4; null: not a slice."
  type        = string
}

variable "hosts" {
  description = "How many there are."
  type        = number
}

variable "accelerator" {
  description = "What each host computes on: tpu, gpu, or null."
  type        = string
}

variable "boot_disk" {
  description = "Type of the disk that the machine type boots from."
  type        = string
}

variable "data_disks" {
  description = "Types of disk that the machine type can attach to read."
  type        = list(string)
}

variable "region" {
  description = "The zone's."
  type        = string
}

variable "zone" {
  description = "Of the hosts."
  type        = string
}

variable "provisioning_model" {
  description = "STANDARD, SPOT, FLEX_START or RESERVATION_BOUND."
  type        = string
}

variable "reservation" {
  description = "Name of the reservation, for RESERVATION_BOUND."
  type        = string
}

variable "max_run_hours" {
  description = "Google deletes a host after so long; null: never."
  type        = number
}

variable "image" {
  description = "Boot image, or a family's newest."
  type        = string
}

variable "labels" {
  description = "On hosts and their boot disks."
  type        = map(string)
}

variable "subnetwork" {
  description = "ID of the one in the zone's region."
  type        = string
}

variable "service_account" {
  description = "Email of whom hosts act as."
  type        = string
}

variable "disk" {
  description = "Attached to every host, to be read."
  type = object({
    name        = string
    type        = string
    zone        = string
    seeded      = bool
    device_name = string
  })
}

variable "metadata" {
  description = "Of every host; null values are left out. The number of hosts is added."
  type        = map(string)
}
