"""Hooks: a trainer from the inside, one file each.

A hook watches a live training loop of one trainer, translates each optimizer step into a ``Step`` and hands it to
``live.Recorder``. To add one, drop a file in with a function ``attach(trainer, folder, ...)``. It stands above ``live`` and not
in ``trainers/``, whose readers must load without any of this.
"""
