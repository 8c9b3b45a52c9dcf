variable "name" {
  description = "Name of the group, with which the names of its hosts begin."
  type        = string
}

variable "machine_type" {
  description = "Machine type of each host."
  type        = string
}

variable "topology" {
  description = "Chips along each side of a TPU slice, such as 4x4; null: not a slice."
  type        = string
}

variable "hosts" {
  description = "Number of hosts."
  type        = number
}

variable "accelerator" {
  description = "What each host computes on: tpu, gpu, or null for its CPUs."
  type        = string
}

variable "boot_disk" {
  description = "Type of the disk that the machine type boots from."
  type        = string
}

variable "data_disks" {
  description = "Types of disk that the machine type can attach for reading."
  type        = list(string)
}

variable "region" {
  description = "Region of the zone."
  type        = string
}

variable "zone" {
  description = "Zone of the hosts."
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
  description = "Hours after which Google deletes a host; null: never."
  type        = number
}

variable "image" {
  description = "Boot image, or a family's newest."
  type        = string
}

variable "labels" {
  description = "Labels of hosts and their boot disks."
  type        = map(string)
}

variable "subnetwork" {
  description = "ID of the subnetwork in the zone's region."
  type        = string
}

variable "service_account" {
  description = "Email of the service account that hosts act as."
  type        = string
}

variable "disk" {
  description = "The data disk, which every host attaches for reading; null: none."
  type = object({
    name        = string
    type        = string
    zone        = string
    seeded      = bool
    device_name = string
  })
}

variable "metadata" {
  description = "Metadata of every host; null values are left out. The number of hosts and the topology are added."
  type        = map(string)
}
