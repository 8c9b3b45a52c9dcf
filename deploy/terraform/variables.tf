# `maskwright env` writes terraform.tfvars.json with all of these. What a variable leaves null is not made.

variable "project" {
  description = "ID of the project."
  type        = string
  validation {
    condition     = can(regex("^[a-z][a-z0-9-]{4,28}[a-z0-9]$", var.project))
    error_message = "project is the ID of a project: 6 to 30 of a-z, 0-9 and -."
  }
}

variable "name" {
  description = "Name of the environment, with which the name of everything made here begins."
  type        = string
  validation {
    condition     = can(regex("^[a-z][a-z0-9-]{0,18}[a-z0-9]$", var.name))
    error_message = "name has 2 to 20 of a-z, 0-9 and -, and begins with a letter."
  }
}

variable "region" {
  description = "Home of everything: subnetwork, cluster, repositories, and NFS in tier REGIONAL."
  type        = string
  validation {
    condition     = can(regex("^[a-z]+-[a-z]+[0-9]+$", var.region))
    error_message = "region is a name such as us-east5."
  }
}

variable "zone" {
  description = "Home of the disk and of NFS."
  type        = string
  validation {
    condition     = can(regex("^[a-z]+-[a-z]+[0-9]+-[a-z]$", var.zone))
    error_message = "zone is a name such as us-east5-b."
  }
}

variable "labels" {
  description = "Labels of everything that can carry them."
  type        = map(string)
  validation {
    condition     = contains(keys(var.labels), "maskwright-environment")
    error_message = "labels need maskwright-environment, by which `env down` finds what is left."
  }
  validation {
    condition = alltrue([
      for key, value in var.labels :
      can(regex("^[a-z][a-z0-9_-]{0,62}$", key)) && can(regex("^[a-z0-9_-]{0,63}$", value))
    ])
    error_message = "labels consist of a-z, 0-9, _ and -, at most 63 characters each."
  }
}

variable "cluster" {
  description = "The GKE cluster."
  type = object({
    location        = string # a zone, or the region
    release_channel = string
    machine_type    = string # of the nodes for controllers
  })
}

variable "nat" {
  description = "Whether nodes, which have no addresses of their own, reach the internet."
  type        = bool
  default     = false
}

variable "network" {
  description = "A network that exists, with its subnetwork; nothing is made in it. null: one is made here."
  type = object({
    id             = string # projects/PROJECT/global/networks/NAME
    subnetwork     = string
    pods_range     = optional(string) # secondary ranges of the subnetwork; null: GKE makes them
    services_range = optional(string)
    shared         = bool # whether it is a host project's (Shared VPC)
  })
  default = null
}

variable "bucket_location" {
  description = "Region or multi-region of the buckets."
  type        = string
}

variable "dataset_bucket" {
  description = "Name of the bucket with the data."
  type        = string
}

variable "runs_bucket" {
  description = "Name of the bucket with runs and checkpoints."
  type        = string
}

variable "nfs" {
  description = "Filestore; null: none."
  type = object({
    tier        = optional(string, "BASIC_HDD")
    capacity_gb = optional(number, 1024)
    share       = optional(string, "share")
  })
  default = null
  validation {
    condition     = var.nfs == null ? true : contains(["BASIC_HDD", "BASIC_SSD", "ZONAL", "REGIONAL"], var.nfs.tier)
    error_message = "nfs.tier is BASIC_HDD, BASIC_SSD, ZONAL or REGIONAL."
  }
  validation {
    # docs.cloud.google.com/filestore/docs/service-tiers
    condition     = var.nfs == null ? true : var.nfs.capacity_gb >= (var.nfs.tier == "BASIC_SSD" ? 2560 : 1024)
    error_message = "nfs.capacity_gb is at least 1024, and 2560 in tier BASIC_SSD."
  }
}

variable "disk" {
  description = "The data disk: written by the Job of `env seed` while seeded is false, then read by all jobs."
  type = object({
    name    = string
    type    = string
    size_gb = number
    seeded  = bool
  })
  default = null
  validation {
    condition     = var.disk == null ? true : contains(["hyperdisk-ml", "pd-balanced", "pd-ssd", "pd-standard"], var.disk.type)
    error_message = "disk.type is one that many nodes can read: hyperdisk-ml, pd-balanced, pd-ssd or pd-standard."
  }
}

variable "delete_data" {
  description = "Takes the protection off buckets and NFS, before a destroy."
  type        = bool
  default     = false
}
